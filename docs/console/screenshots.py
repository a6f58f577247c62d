"""Writes the console's screenshots into this folder, from a platform that runs.

headrace up --demo --ready-file ready.json
python docs/console/screenshots.py ready.json
"""

import json
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

folder = Path(__file__).parent
chromium = "/usr/bin/chromium"
arguments = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
pages = ("overview", "keys", "usage", "deployments")


def main(ready_file: Path) -> None:
    """Sign in, chat once, and take the pictures."""
    ready = json.loads(ready_file.read_text())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1360, "height": 880}, color_scheme="light")
        page.goto(f"{ready['admin_url']}/#token={ready['admin_token']}")
        page.get_by_role("heading", name="Overview").wait_for()
        chat(page, ready["api_key"])
        page.screenshot(path=folder / "playground.png")
        for name in pages:
            show(page, name)
            page.screenshot(path=folder / f"{name}.png")
        page.click("#theme")
        show(page, "overview")
        page.screenshot(path=folder / "overview-dark.png")
        page.set_viewport_size({"width": 390, "height": 844})
        show(page, "overview")
        page.screenshot(path=folder / "overview-phone.png")
        browser.close()


def show(page: Page, name: str) -> None:
    """Go to a page and wait until it is drawn."""
    page.goto(page.url.partition("#")[0] + f"#/{name}")
    page.locator(f'nav a[href="#/{name}"][aria-current]').wait_for()
    page.locator(".page h1").wait_for()
    page.wait_for_timeout(2500)  # charts and the next poll


def chat(page: Page, key: str) -> None:
    """Ask the demo model something, so that there is something to see."""
    show(page, "playground")
    page.fill("#play-key", key)
    page.locator("#play-key").dispatch_event("change")
    page.locator("#model-A option").first.wait_for(state="attached")
    page.select_option("#model-B", index=1)
    page.fill("#max-tokens", "80")
    page.fill("#prompt", "Explain in two sentences what a headrace is.")
    page.click("#send")
    page.locator("#send").wait_for(state="visible", timeout=60_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
