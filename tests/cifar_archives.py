"""CIFAR as its authors publish it, with few images: batches as Python 2 pickled them, plain bytes, archives of both."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dgconv.data.cifar_archive import PIXELS, Form


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Texts as Python 2 has them, which are bytes, and numpy's old name."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_text(self, value: Any) -> None:
        content = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + len(content).to_bytes(4, "little") + content)
        self.memoize(value)

    def save_global(self, value: Any, name: str | None = None) -> None:
        module = {"_reconstruct": "numpy.core.multiarray"}.get(value.__name__, value.__module__)
        self.write(pickle.GLOBAL + f"{module}\n{value.__name__}\n".encode())
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_text


def as_python_2_pickled_it(value: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue()


def pixels_of(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, PIXELS), dtype=np.uint8)


def files_of(form: Form, classes: int, images: int = 3) -> dict[str, bytes]:
    """The files of a form by name; image i of file number n has the label (n + i) mod classes."""
    names = [f"class_{number}" for number in range(classes)]
    found = {}
    for number, file in enumerate(form.files):
        pixels, labels = pixels_of(images, number), [(number + image) % classes for image in range(images)]
        if isinstance(form.labels, int):
            columns = [np.full((images, form.labels), 19, np.uint8), np.array(labels, np.uint8)[:, None], pixels]
            found[file] = np.concatenate(columns, 1).tobytes()
        else:
            batch = {"batch_label": file, "data": pixels, "filenames": [f"{n}.png" for n in range(images)]}
            found[file] = as_python_2_pickled_it(batch | {form.labels: labels, "coarse_labels": [19] * images})
    meta = {form.name_key: names, "num_vis": PIXELS}
    found[form.names] = as_python_2_pickled_it(meta) if form.name_key else "\n".join(names).encode() + b"\n\n"
    return found


def packed(form: Form, files: dict[str, bytes]) -> bytes:
    """The archive, as ``tar`` makes it of the unpacked folder."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        folder = tarfile.TarInfo(form.folder)
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in {**files, "readme.html": b"x" * 600}.items():
            member = tarfile.TarInfo(f"{form.folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(archive.getvalue(), 1, mtime=0)


def write(form: Form, root: Path, files: dict[str, bytes], how: str) -> Path:
    """``archive``: root has it; ``file``: the archive itself; ``folder``: it is unpacked; ``inside``: as such."""
    if how in ("archive", "file"):
        archive = root / form.archive
        archive.write_bytes(packed(form, files))
        return root if how == "archive" else archive
    folder = root / form.folder
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return root if how == "folder" else folder
