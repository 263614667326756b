"""The site: it builds without a warning, asks nothing of a network, and every block on its pages runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import DESKTOP, PHONE, overflows_sideways, save_screenshot

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site):
    for page in ("index", "start", "api/layer", "security", "source/src/dgconv/ops/reference.py"):
        assert (site / f"{page}.html").is_file()
    assert "--generator-weight-decay" in (site / "commands.html").read_text(), "the help is that of the parsers"
    assert "in_channels" in (site / "api/layer.html").read_text()


@pytest.mark.slow
def test_pages_ask_nothing_of_a_network(site):
    loaded = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^\"' >]+")
    for page in site.rglob("*.html"):
        assert not loaded.findall(page.read_text()), page.name


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_in_a_browser(site, browser_page, size, dark):
    page = browser_page(size, dark=dark)
    for name in ("index", "start", "commands", "costs", "architecture", "api/layer"):
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_load_state("networkidle")
        assert not overflows_sideways(page), name
        assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
        save_screenshot(page, f"site-{name.replace('/', '-')}-{size[0]}{'-dark' * dark}")


@pytest.mark.slow
def test_the_site_is_searched_without_a_server(site, browser_page):
    page = browser_page(DESKTOP)
    page.goto((site / "index.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("Winograd")
    page.wait_for_selector(".md-search-result__link")


def test_the_readme_fits_on_two_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
