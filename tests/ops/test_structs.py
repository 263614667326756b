"""Python and C++ must agree about every field of the structs that they share."""

from ctypes import Structure, c_int64

import pytest

from dgconv.ops import native, structs

needs_kernels = pytest.mark.skipif(not native.available(), reason="no native kernels here")


def changed(kind: type[Structure], fields: list) -> type[Structure]:
    return type(kind.__name__, (Structure,), {"_fields_": fields})


@needs_kernels
def test_all_structs_agree():
    structs.check_layout(native.library())


@needs_kernels
@pytest.mark.parametrize("kind", structs.SHARED, ids=lambda kind: kind.__name__)
def test_two_swapped_fields_are_refused(monkeypatch, kind):
    """Of the same type, too, where sizes and offsets as a whole stay what they are."""
    fields = list(kind._fields_)
    pairs = [(i, i + 1) for i in range(len(fields) - 1) if fields[i][1] is fields[i + 1][1]] or [(0, 1)]
    for first, second in pairs:
        swapped = list(fields)
        swapped[first], swapped[second] = fields[second], fields[first]
        others = tuple(changed(kind, swapped) if other is kind else other for other in structs.SHARED)
        monkeypatch.setattr(structs, "SHARED", others)
        with pytest.raises(ImportError, match=f"{kind.__name__}.{fields[first][0]}"):
            structs.check_layout(native.library())
        monkeypatch.undo()


@needs_kernels
def test_a_field_that_one_side_lacks_is_refused(monkeypatch):
    more = changed(structs.Region, [*structs.Region._fields_, ("new", c_int64)])
    monkeypatch.setattr(structs, "SHARED", (*structs.SHARED[:3], more, *structs.SHARED[4:]))
    with pytest.raises(ImportError, match=r"Region, Region\.new"):
        structs.check_layout(native.library())
