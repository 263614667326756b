"""Tables as plain text."""

from rich.console import Console, RenderableType


def as_text(table: RenderableType) -> str:
    """What rich would show, without colours: for ``__str__``."""
    console = Console(width=140, color_system=None, force_terminal=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()
