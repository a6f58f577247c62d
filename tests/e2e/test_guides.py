"""The commands of the tutorials and the operator's guide, run in their order as they stand there.

Addresses, directories and ids that a reader would put in are put in. What needs Kubernetes, Ray,
another machine or much time is not run; each such command is named here, and parsed.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main

from headrace.cli import main
from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess

pytestmark = pytest.mark.e2e

docs = Path(__file__).parents[2] / "docs"
read_first = ("tutorials/operate.md", "operate/backup.md", "operate/capacity.md")
not_run = (
    "headrace up",  # the platform that the others are run against
    "headrace run",  # README's test runs it
    "headrace serve",  # likewise
    "headrace bench",
    "headrace quantize",  # tests/unit/cli/test_quantize.py
    "headrace node join",  # tests/e2e/test_up_nodes.py
    "headrace gateway",  # tests/e2e/test_gateway_process.py
    "headrace control",
    "headrace deployments create demo --replicas 2 --engine vllm",
)
named_file = r"with a `(\S+)` of\n```\w+\n(.*?)^```"
others = ("curl", "export", "pip install", "kubectl")

Run = Callable[[str], str]


def lines(page: Path) -> Iterator[str]:
    """The commands of a page, continuation lines joined."""
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            if line.strip():
                yield line.strip()


def guides() -> list[Path]:
    """The pages in the order in which they are run."""
    pages = [docs / name for name in read_first]
    rest = sorted([*docs.glob("tutorials/*.md"), *docs.glob("operate/*.md")])
    return pages + [page for page in rest if page not in pages]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    with PlatformProcess.start(tmp_path_factory.mktemp("guides")) as started:
        yield started


@pytest.fixture
def run(
    platform: PlatformProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    monkeypatch.setenv("HEADRACE_DATA_DIR", str(platform.data_dir))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def run_line(line: str) -> str:
        try:
            status: object = main.main(shlex.split(line.partition(" > ")[0])[1:])
        except SystemExit as error:
            status = error.code
        out, problem = capsys.readouterr()
        assert status in (0, None), f"{line}\n{out}\n{problem}"
        return out

    return run_line


@pytest.mark.timeout(240)
def test_the_guides_commands_do_what_their_pages_say(
    platform: PlatformProcess, tmp_path: Path, run: Run
) -> None:
    for page in guides():
        for name, content in re.findall(named_file, page.read_text(), re.MULTILINE | re.DOTALL):
            (tmp_path / name).write_text(content)
    known = {
        "/var/lib/headrace-new": str(tmp_path / "restored"),
        "/var/lib/headrace": str(tmp_path / "parts"),
    }
    last = ("headrace keys revoke", "headrace deployments delete")  # when all is done
    postponed = []
    for page in guides():
        for line in lines(page):
            if line.startswith(last):
                postponed.append(line)
            elif line.startswith("curl") and page.name == "operate.md":
                known["REQUEST_ID"] = ask(line, platform, known["$KEY"])
            elif not line.startswith((*not_run, *others)):
                if line.startswith("headrace usage"):
                    wait_until(lambda: "acme" in run("headrace usage --by tenant"))
                note(line, patiently(run, filled(line, known)), known)
    assert "Mill Race GmbH" in (tmp_path / "acme.html").read_text()
    for line in postponed:
        run(filled(line, known))
    assert (tmp_path / "restored" / "headrace.db").is_file()


def patiently(run: Run, line: str) -> str:
    """What a command says, which may ask to be asked again."""
    said: list[str] = []

    def is_said() -> bool:
        try:
            said.append(run(line))
        except AssertionError as refusal:
            if "ask again in some seconds" not in str(refusal):
                raise
        return bool(said)

    wait_until(is_said)
    return said[0]


def filled(line: str, known: dict[str, str]) -> str:
    """The line with what a reader would put in."""
    for name, value in known.items():
        line = re.sub(rf"{re.escape(name)}\b", value, line)
    return line


def note(line: str, said: str, known: dict[str, str]) -> None:
    """Remember what later commands need of an answer."""
    if line.startswith("headrace keys create"):
        found = re.search(r"\bhr_([0-9a-z]+)_[0-9a-f]+", said)
        assert found, said
        known["$KEY"], known["KEY"] = found[0], f"key_{found[1]}"


def ask(line: str, platform: PlatformProcess, key: str) -> str:
    """Ask as the page does, once the model is there; the request's id."""
    platform.wait_active(1)
    line = line.replace("http://127.0.0.1:8080", platform.gateway_url).replace("$KEY", key)
    answers: list[str] = []

    def is_answered() -> bool:  # a gateway learns of a replica within a quarter of a second
        done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=True)
        answers.append(done.stdout)
        return " 200 " in done.stdout.splitlines()[0]

    wait_until(is_answered)
    found = re.search(r"^x-request-id: (\S+)", answers[-1], re.MULTILINE | re.IGNORECASE)
    assert found, answers[-1]
    return found[1]


def test_what_is_not_run_is_a_whole_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cert.pem", "key.pem", "model-f16.gguf", "headrace-2026-11-29.tar"):
        (tmp_path / name).write_text("")
    parsed = 0
    for page in guides():
        for line in lines(page):
            if not line.startswith(not_run):
                assert line.startswith(("headrace", *others)), f"{page.name}: who runs {line!r}?"
                continue
            words = shlex.split(line.partition(" > ")[0])[1:]
            command, path = typer.main.get_command(main.build_app(words)), []
            while hasattr(command, "commands"):
                path.append(words.pop(0))
                command = command.commands[path[-1]]
            command.make_context(" ".join(path), words)  # refuses what cannot be meant
            parsed += 1
    assert parsed > 8
