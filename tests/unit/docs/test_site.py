"""The documentation builds without a warning, asks nobody, and what it tells to type exists."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli import main

root = Path(__file__).parents[3]
pages = sorted(
    path for folder in ("tutorials", "operate") for path in (root / "docs" / folder).glob("*.md")
)
ours = ("http://127.0.0.1", "https://squidfunk.github.io/mkdocs-material")  # a link in the footer


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("material", reason="pip install 'headrace[docs]'")
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(directory)],
        cwd=root,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "no_proxy": "",
            "https_proxy": "127.0.0.1:9",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def test_it_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    for page in pages:
        place = page.relative_to(root / "docs").with_suffix("")
        place = place.parent if place.name == "index" else place
        assert (site / place / "index.html").exists()


def test_a_reader_asks_nobody_else(site: Path) -> None:
    for name in ("index.html", "concepts/layers/index.html"):
        text = (site / name).read_text()
        loaded = re.findall(
            r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"?(https?://[^\"\s>]+)", text
        )
        assert loaded == []


def test_every_figure_is_what_its_script_draws() -> None:
    path = root / "docs" / "figures" / "draw.py"
    spec = spec_from_file_location("draw", path)
    assert spec is not None
    assert spec.loader is not None
    draw = module_from_spec(spec)
    sys.modules["draw"] = draw  # dataclasses look themselves up there
    spec.loader.exec_module(draw)
    for figure in draw.figures:
        drawn = root / "docs" / "figures" / f"{figure.__name__.replace('_', '-')}.svg"
        assert drawn.read_text() == figure().svg(), "run python docs/figures/draw.py"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `headrace ...` in the tutorials and the operator's guide, with the page it is on."""
    for page in pages:
        text = page.read_text()
        blocks = re.findall(r"^```(?:sh|ini)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        spans = re.findall(r"`(headrace [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for block in [*blocks, *spans]:
            for line in block.replace("\\\n", " ").splitlines():
                found = re.search(r"(?:^|[/=(] ?|bin/)headrace ((?:[^|>#)]|\s)+)", line)
                if found:
                    yield page.name, shlex.split(found[1])


def test_every_command_and_option_in_the_guides_exists() -> None:
    seen = 0
    for page, words in commands():
        command = find(words, page)
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        asked = {word.partition("=")[0] for word in words if word.startswith("-")}
        asked -= {word for word in asked if word in ("-h", "--help", "--version")}
        assert asked <= known, (page, " ".join(words), sorted(asked - known))
        seen += 1
    assert seen > 40


def find(words: list[str], page: str) -> Any:
    """The command that these words name."""
    names = [word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)]
    command: Any = typer.main.get_command(main.build_app(names))
    for word in words:
        if not hasattr(command, "commands") or word.startswith("-"):
            break
        assert word in command.commands, (page, " ".join(words))
        command = command.commands[word]
    return command


def test_every_alert_s_runbook_is_on_the_site(site: Path) -> None:
    text = (site / "operate" / "runbooks" / "index.html").read_text()
    rules = (root / "deploy" / "prometheus" / "headrace.rules.yml").read_text()
    anchors = set(re.findall(r"runbooks\.md#(\w+)", rules))
    assert anchors
    for anchor in anchors:
        assert f"id={anchor}" in text.replace('"', "")
