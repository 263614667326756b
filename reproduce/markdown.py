"""Tables in Markdown, and sections of a page that are written by a program."""

import re
from collections.abc import Sequence

from dgconv.errors import UserError


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Numbers to the right: all columns but the first ``left`` ones."""
    lines = [heading, ["---"] * left + ["---:"] * (len(heading) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def sections_in(text: str) -> list[str]:
    """The names of those that a page has."""
    return re.findall(r"<!-- begin: (\w+) -->", text)


def fill_section(text: str, name: str, content: str) -> str:
    """A page with new content between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->``."""
    pattern = rf"(<!-- begin: {name} -->\n).*?(<!-- end: {name} -->)"
    text, count = re.subn(pattern, lambda found: f"{found[1]}\n{content}\n\n{found[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise UserError(
            f"the page must have one section '<!-- begin: {name} -->' to '<!-- end: {name} -->', it has {count}"
        )
    return text
