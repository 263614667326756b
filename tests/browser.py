"""A real, headless Chromium for tests of pages. Skips where playwright or Chromium is missing.

``browser_page`` opens tabs::

    def test_something(browser_page):
        page = browser_page(PHONE, dark=True)
        page.goto(file.as_uri())
        save_screenshot(page, "something-phone-dark")

When the test ends, it fails if a page wrote an error to its console, threw an exception, or asked for anything that is
not on this machine.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE, DESKTOP = (360, 740), (1280, 900)
SCREENSHOTS = Path(__file__).parent.parent / "build" / "screenshots"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 10_000

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="session")
def _chromium() -> "Iterator[Browser]":
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def browser_page(_chromium: "Browser") -> Iterator[OpenPage]:
    """Opens a tab of a size, ``dark`` or light; other options are those of playwright's ``new_context``.

    ``expected_errors``: parts of console messages that are no mistake, such as the 4xx status a test asks for.
    """
    contexts, problems, expected = [], [], []

    def note(problem: str) -> None:
        if not any(part in problem for part in expected):
            problems.append(problem)

    def answer(route: Any) -> None:
        url = urlsplit(route.request.url)
        if url.scheme in ("file", "data", "blob", "about") or url.hostname == "127.0.0.1":
            route.continue_()
        else:
            problems.append(f"asked for {route.request.url}")
            route.abort()

    def open_page(
        size: tuple[int, int] = DESKTOP, *, dark: bool = False, expected_errors: tuple[str, ...] = (), **options: Any
    ) -> "Page":
        expected.extend(expected_errors)
        context = _chromium.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light", **options
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.route("**/*", answer)
        page = context.new_page()
        page.on("console", lambda message: note(f"console: {message.text}") if message.type == "error" else None)
        page.on("pageerror", lambda error: note(f"exception: {error}"))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems, "\n".join(problems)


def save_screenshot(page: "Page", name: str, *, full_page: bool = False) -> Path:
    """For people to look at: ``build/screenshots/NAME.png``."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    file = SCREENSHOTS / f"{name}.png"
    partial = file.with_suffix(f".{os.getpid()}.png")  # another worker may write it at the same time
    page.screenshot(path=partial, full_page=full_page)
    partial.replace(file)
    return file


def overflows_sideways(page: "Page") -> bool:
    """Whether the page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
