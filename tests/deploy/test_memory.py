"""Memory in huge pages: any length, aligned, and never handed out twice."""

from pathlib import Path

import pytest

from dgconv.deploy.run.memory import ALIGNMENT, BLOCK_FLOATS, HUGE_PAGE, PackedMemory, empty, empty_result

SMAPS = Path("/proc/self/smaps")


@pytest.mark.parametrize("floats", [0, 1, 17, (1 << 15) + 5, 1 << 19, (1 << 20) + 3])
def test_empty_is_a_vector_that_can_be_filled(floats):
    memory = empty(floats).fill_(2)
    assert memory.shape == (floats,)
    assert memory.sum() == 2 * floats


def test_a_memory_hands_out_disjoint_aligned_vectors():
    memory = PackedMemory()
    lengths = [5, 1000, 16, BLOCK_FLOATS - 100, 7, BLOCK_FLOATS + 1, 3]  # over several blocks
    vectors = [memory.empty(length) for length in lengths]
    for value, vector in enumerate(vectors):
        vector.fill_(value)
    for value, (vector, length) in enumerate(zip(vectors, lengths, strict=True)):
        assert len(vector) == length
        assert vector.data_ptr() % (4 * ALIGNMENT) == 0
        assert vector.min() == vector.max() == value


def flags_at(address: int) -> list[str]:
    """Of the mapping that an address lies in."""
    is_inside = False
    for words in map(str.split, SMAPS.read_text().splitlines()):
        if not words[0].endswith(":"):
            begin, end = (int(word, 16) for word in words[0].split("-"))
            is_inside = begin <= address < end
        elif is_inside and words[0] == "VmFlags:":
            return words[1:]
    raise AssertionError("the address is in no mapping")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="there are no huge pages")
def test_large_results_come_in_huge_pages():
    """Of 64 MB: more than the allocator keeps, so that it asks the system each time."""
    y = empty_result((4, 4, 1024, 1024))
    first, last = -(-y.data_ptr() // HUGE_PAGE), (y.data_ptr() + y.nbytes) // HUGE_PAGE - 1
    assert last - first >= 30
    assert "hg" in flags_at(first * HUGE_PAGE)
    assert "hg" in flags_at((last + 1) * HUGE_PAGE - 1)


@pytest.mark.parametrize("shape", [(3, 0, 5), (7, 3), (1, 1 << 19), (2, 3, 700, 700)])
def test_results_can_be_filled(shape):
    y = empty_result(shape).fill_(2)
    assert y.shape == shape
    assert y.is_contiguous()
    assert (y == 2).all()
