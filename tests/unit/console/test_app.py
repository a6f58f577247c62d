"""The console's files: complete, self-contained, and served under a strict policy."""

import re
from collections.abc import Mapping

import pytest
from starlette.testclient import TestClient

from headrace.console import create_console_app
from headrace.console.app import content_types, load_files

first_load_bytes_max = 300_000


@pytest.fixture
def browser() -> TestClient:
    return TestClient(create_console_app(), base_url="http://127.0.0.1:8081")


def texts() -> Mapping[str, str]:
    """What is written here; the vendored chart library is as its package has it."""
    files = load_files().items()
    return {path: file.body.decode() for path, file in files if "/vendor/" not in path}


@pytest.mark.parametrize("path", sorted(load_files()))
def test_every_file_is_served_with_its_type_and_policy(browser: TestClient, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] in content_types.values()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_all_files_together_are_small() -> None:
    loaded = load_files().values()
    assert sum(len(file.body) for file in loaded) < first_load_bytes_max
    assert sum(len(file.compressed) for file in loaded) < first_load_bytes_max / 2


def test_a_file_is_the_same_compressed_and_has_a_tag_of_its_own(browser: TestClient) -> None:
    plain = browser.get("/static/main.js", headers={"accept-encoding": "identity"})
    packed = browser.get("/static/main.js", headers={"accept-encoding": "gzip, br"})
    assert (packed.content, packed.headers["content-encoding"]) == (plain.content, "gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["etag"] != plain.headers["etag"]
    assert packed.headers["vary"] == "accept-encoding"


def test_the_page_names_every_module_before_the_first_asks_for_it() -> None:
    modules = {path for path in texts() if path.endswith(".js")}
    hinted = set(re.findall(r'rel="modulepreload" href="([^"]+)"', texts()["/"]))
    assert hinted == modules


def test_no_file_names_another_machine() -> None:
    allowed = {"http://www.w3.org/2000/svg"}
    for path, text in texts().items():
        found = set(re.findall(r"https?://[^\s\"'`<>)$]+", text))
        assert found <= allowed, path


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    page = texts()["/"]
    assert all("src=" in tag for tag in re.findall(r"<script\b[^>]*>", page))
    assert "<style" not in page
    assert not re.search(r"\s(style|on\w+)=", page)


def test_scripts_never_turn_text_into_markup() -> None:
    for path, text in texts().items():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
        ), path


def test_every_import_and_link_leads_to_a_file() -> None:
    known = load_files()
    for path, text in texts().items():
        linked = re.findall(r"(?:href|src)=\"(/static/[^\"]+)\"", text)
        imported = [f"/static/{name}" for name in re.findall(r"from \"\./([^\"]+)\"", text)]
        for target in [*linked, *imported]:
            assert target in known, (path, target)


def test_inputs_have_labels_and_images_have_texts() -> None:
    page = texts()["/"]
    for tag in re.findall(r"<input\b[^>]*>", page):
        identifier = re.search(r'id="([^"]+)"', tag)
        assert identifier is not None
        assert f'for="{identifier[1]}"' in page
    assert all("alt=" in tag for tag in re.findall(r"<img\b[^>]*>", page))
    assert '<html lang="en">' in page


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/static/",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/etc/passwd",
        "/static/app.py",
    ],
)
def test_nothing_else_can_be_read(browser: TestClient, path: str) -> None:
    assert browser.get(path).status_code == 404


def test_only_reading_is_allowed(browser: TestClient) -> None:
    answer = browser.post("/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"
    head = browser.head("/")
    assert head.status_code == 200
    assert head.content == b""


def test_a_known_file_is_not_sent_again(browser: TestClient) -> None:
    tag = browser.get("/static/main.js").headers["etag"]
    again = browser.get("/static/main.js", headers={"if-none-match": tag})
    assert again.status_code == 304
    assert again.content == b""
