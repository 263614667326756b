"""What the page about the methods shows of each: its options, from its record."""

from dgconv.compare.methods import rivals
from dgconv.layers.method import Method, Option

from .markdown import table

HEADINGS = ("method", "option", "default", "what it may be", "what it is")


def options() -> str:
    """A line for each option of every method."""
    methods = [rival.method for rival in rivals().values() if rival.method]
    return table(HEADINGS, [line for method in methods for line in _lines(method)], left=len(HEADINGS))


def _lines(method: Method) -> list[list[str]]:
    return [
        [f"{method.title}, `{method.name}`", f"`{option.name}`", f"`{option.default}`", _range(option), option.help]
        for option in method.choices.values()
    ] or [[f"{method.title}, `{method.name}`", "", "", "", "none of its own"]]


def _range(option: Option) -> str:
    if option.allowed:
        return option.allowed.words
    choices = getattr(option.kind, "__args__", ())
    return " or ".join(f"`{choice}`" for choice in choices) if choices else "yes or no"
