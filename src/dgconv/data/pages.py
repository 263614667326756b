"""How much memory a column of a Parquet file needs, by the headers of its pages: a few bytes may stand for very many.

The notes at the end of a file tell sizes, too, but nothing holds the pages to them.
"""

from typing import BinaryIO, NamedTuple

import pyarrow.parquet as pq

MOST_PAGES = 200_000
HEADER, LONGEST_HEADER = 2**10, 2**24  # bytes, of most and of one with long values in it
STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY = range(9)  # Thrift's compact types
STRUCT = 12
MOST_FIELDS = 100  # of a header
FULL, STORED = 2, 3  # the fields of a header that hold the size of its page, decompressed and as it is in the file


class Pages(NamedTuple):
    """Bytes of pages once they are decompressed: all together, and those of the largest."""

    total: int
    largest: int


def measure_pages(file: BinaryIO, notes: pq.ColumnChunkMetaData) -> Pages:
    """The pages of a column in one row group; a ``ValueError`` where there is something else."""
    place, total, largest = notes.data_page_offset, 0, 0
    if notes.has_dictionary_page and 0 < (notes.dictionary_page_offset or 0) < place:
        place = notes.dictionary_page_offset
    end = place + notes.total_compressed_size
    for _ in range(MOST_PAGES):
        if place >= end:
            return Pages(total, largest)
        length, full, stored = _read_header(file, place)
        total, largest, place = total + full, max(largest, full), place + length + stored
    raise ValueError(f"a column has more than {MOST_PAGES:,} pages")


def _read_header(file: BinaryIO, place: int) -> tuple[int, int, int]:
    """Its own length, and the sizes of its page."""
    for most in (HEADER, LONGEST_HEADER):
        file.seek(place)
        header = _Header(file.read(most))
        try:
            header.read_struct()
        except IndexError:
            continue
        full, stored = header.sizes.get(FULL, -1), header.sizes.get(STORED, -1)
        if full < 0 or stored < 0:
            raise ValueError("a page has no size")
        return header.place, full, stored
    raise ValueError("the header of a page is cut off")


class _Header:
    """The header of a page, in Thrift's compact protocol, of which only whole numbers are kept."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place, self.fields = content, 0, 0
        self.sizes: dict[int, int] = {}

    def read_struct(self, is_inner: bool = False) -> None:
        number = 0
        while (head := self._byte()) & 15 != STOP:
            kind, number = head & 15, number + (head >> 4) if head >> 4 else self._signed()
            self.fields += 1
            if self.fields > MOST_FIELDS:
                raise ValueError("the header of a page has too many fields")
            if kind in (I16, I32, I64):
                value = self._signed()
                if not is_inner:
                    self.sizes[number] = value
            elif kind == STRUCT:
                self.read_struct(is_inner=True)
            elif kind in (BYTE, DOUBLE, BINARY):
                length = {BYTE: 1, DOUBLE: 8}.get(kind) or self._unsigned()  # which moves the place, too
                self.place += length
            elif kind not in (TRUE, FALSE):
                raise ValueError("the header of a page has a field of an unknown type")

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
        raise ValueError("the header of a page has a number that is too large")

    def _byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]
