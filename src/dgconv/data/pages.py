"""How much memory columns of a Parquet file need, by the headers of their pages: a few bytes may stand for very many.

The notes at the end of a file tell sizes, too, but nothing holds the pages to them. Where the pages are is read from
the notes here, and not asked of pyarrow: that ends the process where what they say of a column does not fit.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

MAGIC, LENGTH_BYTES = b"PAR1", 4  # at the end of a file, behind the length of its notes
LONGEST_NOTES = 2**26  # bytes
MOST_PAGES = 200_000
HEADER, LONGEST_HEADER = 2**10, 2**24  # bytes, of most and of one with long values in it
MOST_VALUES, MOST_OF_HEADER = 5_000_000, 100  # in the notes, and in a header
DEEPEST = 20  # structs within structs
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)  # Thrift's compact types
Fields = dict[tuple[int, int], Any]  # by number and type: Parquet's own reader ignores a field of another type
GROUPS, COLUMNS, ROWS, ABOUT = (4, LIST), (1, LIST), (3, I64), (3, STRUCT)  # of a file, of a group, of a column
STORED_IN_ALL, FIRST_DATA_PAGE, DICTIONARY_PAGE = (7, I64), (9, I64), (11, I64)  # of what is told about a column
FULL, STORED = (2, I32), (3, I32)  # of the header of a page: its size, decompressed and as it is in the file


class Pages(NamedTuple):
    """Bytes of pages once they are decompressed: all together, and those of the largest."""

    total: int
    largest: int


def measure_columns(file: BinaryIO, columns: list[int], of: int) -> Pages:
    """The pages of these columns, of so many, in all row groups; a ``ValueError`` where there is something else."""
    total = largest = 0
    for group in _items(_read_notes(file), GROUPS):
        chunks = _items(group, COLUMNS)
        if len(chunks) != of:
            raise ValueError(f"a row group has {len(chunks)} of {of} columns")
        for chunk in (chunks[column] for column in columns if group.get(ROWS)):
            for full in _pages(file, chunk.get(ABOUT) or {}):
                total, largest = total + full, max(largest, full)
    return Pages(total, largest)


def _read_notes(file: BinaryIO) -> Fields:
    """What stands at the end of a file."""
    tail = LENGTH_BYTES + len(MAGIC)
    size = file.seek(0, 2)
    file.seek(max(0, size - tail))
    end = file.read()
    length = int.from_bytes(end[:LENGTH_BYTES], "little")
    if end[LENGTH_BYTES:] != MAGIC or length > min(LONGEST_NOTES, size - tail):
        raise ValueError("its notes are cut off, or too long")
    file.seek(size - tail - length)
    try:
        return _Thrift(file.read(length), MOST_VALUES).read_struct()
    except IndexError:
        raise ValueError("its notes are cut off") from None


def _items(fields: Fields, which: tuple[int, int]) -> list[Fields]:
    """The structs of a list."""
    kind, items = fields.get(which, (STRUCT, []))
    if items and kind != STRUCT:
        raise ValueError("its notes have a list of something else")
    return items


def _pages(file: BinaryIO, about: Fields) -> Iterator[int]:
    """The decompressed sizes of the pages of a column in one row group."""
    place, dictionary = about.get(FIRST_DATA_PAGE, 0), about.get(DICTIONARY_PAGE, 0)
    place = dictionary if 0 < dictionary < place else place
    end = place + about.get(STORED_IN_ALL, 0)
    for _ in range(MOST_PAGES):
        if place >= end:
            return
        length, full, stored = _read_header(file, place)
        place += length + stored
        yield full
    raise ValueError(f"a column has more than {MOST_PAGES:,} pages")


def _read_header(file: BinaryIO, place: int) -> tuple[int, int, int]:
    """Its own length, and the sizes of its page."""
    for most in (HEADER, LONGEST_HEADER):
        file.seek(place)
        reader = _Thrift(file.read(most), MOST_OF_HEADER)
        try:
            header = reader.read_struct()
        except IndexError:
            continue
        full, stored = header.get(FULL, -1), header.get(STORED, -1)
        if full < 0 or stored < 0:
            raise ValueError("a page has no size")
        return reader.place, full, stored
    raise ValueError("the header of a page is cut off")


class _Thrift:
    """Thrift's compact protocol; an ``IndexError`` where something is cut off."""

    def __init__(self, content: bytes, most: int) -> None:
        self.content, self.place, self.left = content, 0, most

    def read_struct(self, depth: int = 0) -> Fields:
        fields: Fields = {}
        number = 0
        while (head := self._byte()) & 15 != STOP:
            kind, number = head & 15, number + (head >> 4) if head >> 4 else self._signed()
            fields[number, kind] = kind == TRUE if kind in (TRUE, FALSE) else self._read(kind, depth)
        return fields

    def _read(self, kind: int, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > DEEPEST:
            raise ValueError("its notes or headers have too many values")
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == STRUCT:
            return self.read_struct(depth + 1)
        if kind in (LIST, SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            return head & 15, [self._read(head & 15, depth + 1) for _ in range(min(count, self.left + 1))]
        if kind in (TRUE, FALSE, BYTE, DOUBLE, BINARY):  # which nobody asks for
            length = (
                self._unsigned() if kind == BINARY else 8 if kind == DOUBLE else 1
            )  # the first moves the place, too
            self.place += length
            return None
        raise ValueError("its notes or headers have a field of an unknown type")

    def _signed(self) -> int:
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)

    def _unsigned(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("its notes or headers have a number that is too large")

    def _byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]
