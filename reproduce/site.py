"""What ``mkdocs build`` adds to the pages in docs/: the help of every command, pages that lie elsewhere, source files.

Links between files are written as they hold in a checkout. On the site, one that leaves docs/ leads to a page made of
the file, so that nothing on the site needs a network.
"""

import posixpath
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {"SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
HOME = {"README.md": "index.md"}
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
HELP = re.compile(r"^<!-- help: ([\w-]*) -->$", re.MULTILINE)
OTHERS = "<!-- help of the others -->"
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".h": "cpp", ".cpp": "cpp"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that are still to be written have their place in the navigation."""
    config.nav = list(_existing(config.nav or []))
    return config


def _existing(entries: list[Any]) -> Iterator[Any]:
    for entry in entries:
        [(title, target)] = entry.items()
        if isinstance(target, list):
            yield {title: list(_existing(target))}
        elif target in ELSEWHERE.values() or (ROOT / "docs" / target).is_file():
            yield entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {f"docs/{file.src_uri}": Path(str(file.abs_src_path)).read_text() for file in files.documentation_pages()}
    for source, target in ELSEWHERE.items():
        pages[source] = (ROOT / source).read_text()
        files.append(File.generated(config, target, content=pages[source]))
    for source in sorted({link for place, text in pages.items() for link in _sources_linked_from(place, text)}):
        files.append(File.generated(config, f"source/{source}.md", content=_source_page(source)))
    return files


def _sources_linked_from(place: str, text: str) -> Iterator[str]:
    for found in LINK.finditer("".join(FENCED.split(text)[::2])):
        path = _path_of(found["target"], place)
        if path and _site_path(path) == f"source/{path}.md":
            yield path


def _source_page(path: str) -> str:
    text = (ROOT / path).read_text()
    language = LANGUAGES.get(Path(path).suffix, "text")
    head = "---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n"
    return f"{head}# {Path(path).name}\n\n`{path}` of the repository.\n\n````{language}\n{text}````\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they hold on the site, and the help of commands."""
    site = page.file.src_uri
    if site.startswith("source/"):
        return markdown
    place = next((source for source, target in ELSEWHERE.items() if target == site), f"docs/{site}")
    pieces = FENCED.split(markdown)
    pieces[::2] = [LINK.sub(lambda found: _link(found, place, site), piece) for piece in pieces[::2]]
    text = "".join(pieces).replace(OTHERS, _others(markdown))
    return HELP.sub(lambda found: _help(found[1]), text)


def _others(page: str) -> str:
    """Sections of the commands that a page does not have."""
    from dgconv_command import described_commands

    named = set(HELP.findall(page))
    return "\n\n".join(f"## {name}\n\n<!-- help: {name} -->" for name in described_commands() if name not in named)


def _link(found: re.Match[str], place: str, site: str) -> str:
    path = _path_of(found["target"], place)
    if path is None:
        return found[0]
    target = _site_path(path)
    if target is None:  # a folder
        return found["text"].strip("[]")
    return f"{found['text']}({posixpath.relpath(target, posixpath.dirname(site) or '.')}{found['anchor'] or ''})"


def _path_of(target: str, place: str) -> str | None:
    """Where a link leads, from the root of the repository; None if out of it."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), target))


def _site_path(path: str) -> str | None:
    if path in ELSEWHERE | HOME:
        return (ELSEWHERE | HOME)[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return None if (ROOT / path).is_dir() else f"source/{path}.md"


def _help(command: str) -> str:
    """What ``dgconv COMMAND --help`` prints, folded."""
    import os

    from dgconv.cli import main

    printed = StringIO()
    os.environ["COLUMNS"] = "80"
    try:
        with redirect_stdout(printed):
            main([*command.split(), "--help"])
    except SystemExit:
        pass
    lines = [line.rstrip() for line in printed.getvalue().strip("\n").splitlines()]
    body = "\n".join(f"    {line}".rstrip() for line in ["```text", *lines, "```"])
    return f'??? note "dgconv {command} --help"\n\n{body}'.replace("dgconv  --help", "dgconv --help")
