import pytest

from headrace.base.errors import SourceError
from headrace.weights.reference import (
    HubRepository,
    HubSource,
    PackageSource,
    PathSource,
    UrlSource,
    parse_reference,
)

digest = "ab" * 32


@pytest.mark.parametrize(
    ("text", "source", "name"),
    [
        ("./models/tiny.Q4_1.gguf", PathSource("./models/tiny.Q4_1.gguf"), "tiny.Q4_1"),
        ("https://host/a/tiny.gguf?x=1", UrlSource("https://host/a/tiny.gguf?x=1"), "tiny"),
        ("http://127.0.0.1:80/m.gguf", UrlSource("http://127.0.0.1:80/m.gguf"), "m"),
        ("hf://owner/repo", HubRepository("owner/repo", "main"), "repo"),
        ("hf://owner/repo@refs/pr/1", HubRepository("owner/repo", "refs/pr/1"), "repo"),
        ("hf://owner/repo/dir/m.gguf", HubSource("owner/repo", "dir/m.gguf", "main"), "m"),
        ("hf://owner/repo/m.gguf@v1.0", HubSource("owner/repo", "m.gguf", "v1.0"), "m"),
        ("pypi://llm-x==0.1.2/llm_x/m.gguf", PackageSource("llm-x", "0.1.2", "llm_x/m.gguf"), "m"),
    ],
)
def test_each_kind_is_parsed(text: str, source: object, name: str) -> None:
    plain, verified = parse_reference(text), parse_reference(f"{text}#sha256={digest.upper()}")
    assert plain.source == verified.source == source
    assert (plain.sha256, verified.sha256) == (None, digest)
    assert plain.name == verified.name == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 5000,
        "a\0b",
        "ftp://host/file",
        "file:///etc/passwd",
        "http://models.example/m.gguf",
        "https:///m.gguf",
        "https://[::1/m.gguf",
        "hf://owner/repo/",
        "hf://owner",
        "hf://owner/repo@",
        "hf://owner/repo/../../x",
        "hf://owner/../x",
        "hf://owner/repo/m.gguf@",
        "hf://owner/repo/m.gguf@-x",
        "pypi://package/m.gguf",
        "pypi://package==/m.gguf",
        "pypi://--index-url==1/m.gguf",
        "pypi://package==1 --pre/m.gguf",
        "pypi://package==1.0/../m.gguf",
        "pypi://package==1.0//etc/passwd",
        "pypi://package==1.0/a\\b",
        "pypi://package==1.0/",
        "m.gguf#sha256=abc",
    ],
)
def test_what_is_malformed_or_unsafe_is_refused(text: str) -> None:
    with pytest.raises(SourceError):
        parse_reference(text)
