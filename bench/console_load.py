"""What a page of the console costs in a browser: bytes of the first load, and time until it works.

    python bench/console_load.py --rounds 5 [--tenants 20]

Starts a platform of its own without a model, fills it, and opens each page in a Chromium with an
empty cache. A page works once its name and data are drawn and nothing held the main thread for more
than 50 ms in the next `--quiet-ms`; the time is from the navigation until that quiet began.
"""

import argparse
import json
import statistics
import tempfile
import urllib.request
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from headrace.sim.platform_process import PlatformProcess

chromium = "/usr/bin/chromium"
arguments = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
patience_ms = 120_000
# When the page is drawn from an answer and the thread was then idle for a while: what is waited for
# is subtracted, so that the figure is the moment at which the quiet began.
interactive = """async (quietMs) => {
  const isDrawn = () => document.querySelector(".page h1")
    && document.getElementById("live").textContent === "Live";
  while (!isDrawn()) await new Promise((resolve) => setTimeout(resolve, 4));
  let quietFrom = performance.now();
  while (performance.now() - quietFrom < quietMs) {
    const before = performance.now();
    await new Promise((resolve) => setTimeout(resolve, 4));
    if (performance.now() - before > 50) quietFrom = performance.now();
  }
  const loaded = ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind));
  return [loaded.reduce((sum, each) => sum + each.transferSize, 0), quietFrom];
}"""


def main() -> None:
    """Measure every page and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--quiet-ms", type=float, default=50.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        PlatformProcess.start(Path(directory)) as platform,
        sync_playwright() as playwright,
    ):
        fill(platform, options.tenants)
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        names = page_names(browser, platform)
        found = {
            name: [load(browser, platform, name, options.quiet_ms) for _ in range(options.rounds)]
            for name in names
        }
        browser.close()
    report(found)


def fill(platform: PlatformProcess, tenant_count: int) -> None:
    """Tenants with a project and a key each, so that tables have rows."""
    for number in range(tenant_count):
        name = f"tenant-{number}"
        ask(platform, "/tenants", {"name": name, "credit_usd": "10"})
        ask(platform, "/projects", {"tenant": name, "name": "web"})
        ask(platform, "/keys", {"project": f"{name}/web", "name": "ci"})


def ask(platform: PlatformProcess, path: str, body: object) -> None:
    """Make something by the admin API."""
    request = urllib.request.Request(
        f"{platform.admin_url}/admin/v1{path}",
        json.dumps(body).encode(),
        {
            "authorization": f"Bearer {platform.admin_token}",
            "content-type": "application/json",
        },
    )
    urllib.request.urlopen(request, timeout=60).close()


def page_names(browser: Browser, platform: PlatformProcess) -> list[str]:
    """Every page that an operator finds in the navigation."""
    page = browser.new_page()
    page.set_default_timeout(patience_ms)
    page.goto(f"{platform.admin_url}/#token={platform.admin_token}")
    page.locator(".page h1").wait_for()
    links = page.locator("nav a").evaluate_all("all => all.map((each) => each.hash.slice(2))")
    page.close()
    return list(links)


def load(
    browser: Browser, platform: PlatformProcess, name: str, quiet_ms: float
) -> tuple[int, float]:
    """Bytes and milliseconds of one page, signed in, with nothing cached."""
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    page = context.new_page()
    page.set_default_timeout(patience_ms)
    page.request.post(
        f"{platform.admin_url}/admin/v1/session",
        headers={"authorization": f"Bearer {platform.admin_token}", "x-headrace-console": "1"},
    )
    page.goto(f"{platform.admin_url}/#/{name}")
    size, took_ms = page.evaluate(interactive, quiet_ms)
    context.close()
    return int(size), float(took_ms)


def report(found: dict[str, list[tuple[int, float]]]) -> None:
    """A table for people and a line for programs."""
    rows = {
        name: {
            "bytes": max(size for size, _ in rounds),
            "ms_median": round(statistics.median(took for _, took in rounds)),
            "ms_worst": round(max(took for _, took in rounds)),
        }
        for name, rounds in found.items()
    }
    print(f"{'page':20}{'bytes':>10}{'ms, median':>12}{'ms, worst':>12}")
    for name, row in rows.items():
        print(f"{name:20}{row['bytes']:>10,}{row['ms_median']:>12}{row['ms_worst']:>12}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
