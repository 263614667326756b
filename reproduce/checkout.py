"""A working copy of the repository: the run records in it, and the pages that are written from them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dgconv.errors import UserError, unknown_name
from dgconv.files import write_atomically
from dgconv.models.pretrained import IN_CHECKOUT, list_cards

from .draw_architecture import PAGE as ARCHITECTURE
from .draw_architecture import draw_architecture
from .groups import Group, group_records
from .markdown import fill_section, sections_in
from .page import PAGE, results_page
from .pictures import draw_pictures, links_to, shows
from .record import Record, read_records
from .sections import SECTIONS

README = "README.md"


@dataclass(frozen=True)
class Checkout:
    root: Path

    def __post_init__(self) -> None:
        if not self.results.is_dir() or not (self.root / README).is_file():
            raise UserError(
                f"{self.root.absolute()} is no checkout of dgconv: it has no {self.results.name}/ or no {README}. "
                "Run this in one, or name it with `root`"
            )

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def weights(self) -> Path:
        return self.root / IN_CHECKOUT

    @cached_property
    def records(self) -> list[Record]:
        return read_records(self.results)

    @cached_property
    def groups(self) -> list[Group]:
        return group_records(self.records)

    def outdated_pages(self) -> dict[Path, bytes]:
        """Pages and pictures that do not show what the records say, and what they should hold."""
        results = self.root / PAGE
        drawings = draw_pictures(self.groups)
        pictures = {results.parent / name: drawing for name, drawing in drawings.items()}
        texts = {results: results_page(self.groups, list_cards(self.weights), links_to(list(drawings)))}
        for path in [*sorted(self.root.glob("*.md")), *sorted((self.root / "docs").glob("*.md"))]:
            if path != results:
                texts[path] = path.read_text()
                for name in sections_in(texts[path]):
                    texts[path] = fill_section(texts[path], name, self.section(name, path))
        outdated = {path: drawing.as_svg() for path, drawing in pictures.items() if not shows(path, drawing)}
        if (results.parent / ARCHITECTURE).exists():
            drawn = {results.parent / name: drawing for name, drawing in draw_architecture().items()}
            outdated |= {path: svg for path, svg in drawn.items() if not path.exists() or path.read_bytes() != svg}
        outdated |= {path: text.encode() for path, text in texts.items() if not _holds(path, text)}
        return outdated

    def section(self, name: str, page: Path) -> str:
        """What belongs between the words of people, where a page has a section of that name."""
        if name not in SECTIONS:
            raise unknown_name("section", name, SECTIONS)
        text = SECTIONS[name](self.root, self.groups)
        return text if page.parent == self.root else text.replace("](docs/", "](")

    def write_pages(self) -> list[Path]:
        """Writes the pages anew; the names of those that were outdated."""
        outdated = self.outdated_pages()
        for path, content in outdated.items():
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, content)
        return list(outdated)


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text
