"""Takes the README's picture of the explorer, in a headless Chromium.

    python docs/take_pictures.py RUN [--data-dir DIR]

Needs the extra ``test`` and Chromium.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).parent
SHOWN = ("--images", "0", "2", "4", "6", "8", "10", "11", "13", "15", "20", "25", "49")  # test images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run folder with its weights")
    parser.add_argument("--data-dir", help="folder of the data set, if it is no longer where it was")
    args = parser.parse_args()
    data = ["--data-dir", args.data_dir] if args.data_dir else []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        explorer = Path(folder) / "explore.html"
        dgconv = [sys.executable, "-m", "dgconv"]
        rates = ["--rates", "0.5", "0.75"]
        subprocess.run([*dgconv, "explore", args.run, *data, *SHOWN, *rates, "--out", explorer], check=True)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 1300})
        page.goto(explorer.as_uri())
        compare_two(page)
        page.screenshot(path=DOCS / "explore.png")
        browser.close()


def compare_two(page: Page) -> None:
    page.wait_for_selector("body[data-average]:not([data-average=''])")
    page.locator(".thumb").nth(1).click()
    page.click("#compare")
    page.locator(".thumb").nth(5).click()
    page.wait_for_selector("#overlap")
    page.evaluate("document.activeElement.blur()")


if __name__ == "__main__":
    main()
