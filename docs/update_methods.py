"""Writes the measured table of docs/methods.md from a comparison; no figure there is typed by hand.

dgconv compare --out FOLDER && cp FOLDER/compare.json benchmarks/results/compare_digits.json
python docs/update_methods.py            # rewrite
python docs/update_methods.py --check    # exit with 1 if the page is not up to date
"""

import json
import re
import sys
from pathlib import Path

from dgconv.compare import Comparison
from dgconv.compare.record import to_markdown

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks/results"


def measured() -> str:
    """A table for each comparison there is."""
    files = sorted(RESULTS.glob("compare_*.json"))
    return "\n".join(to_markdown(Comparison.from_dict(json.loads(file.read_text()))) for file in files)


def filled(text: str) -> str:
    pattern = r"(<!-- begin: measured -->\n).*?(<!-- end: measured -->)"
    text, count = re.subn(pattern, lambda found: f"{found[1]}\n{measured()}\n{found[2]}", text, flags=re.DOTALL)
    assert count == 1
    return text


def main() -> None:
    page = DOCS / "methods.md"
    old = page.read_text()
    new = filled(old)
    if "--check" in sys.argv:
        sys.exit("methods.md is not up to date; run docs/update_methods.py" if new != old else 0)
    page.write_text(new)


if __name__ == "__main__":
    main()
