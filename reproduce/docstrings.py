"""Docstrings as the site shows them: equations as code, for typesetting them takes a script of megabytes."""

import re
import textwrap
from typing import Any

import griffe

MATH = re.compile(r"^\.\. math::[ \n]*(.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
ROLE = re.compile(r":(?:mod|class|func|meth):`~?([^`]*)`")


class PlainMath(griffe.Extension):
    """Equations as blocks of code, names in roles of Sphinx as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = MATH.sub(lambda found: f"```tex\n{_aligned(found[1])}\n```\n\n", obj.docstring.value)
            obj.docstring.value = ROLE.sub(r"`\1`", text)


def _aligned(equation: str) -> str:
    first, _, rest = equation.partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}".strip()
