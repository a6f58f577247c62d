"""The command table: lazy, complete, and honest about errors."""

import subprocess
import sys

import pytest
import typer

from headrace.base.errors import ConfigurationError
from headrace.cli import main as main_module
from headrace.cli.main import command_names, entries, main


def run_main(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as leaving:
        return int(leaving.code or 0)


def test_help_lists_every_visible_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("--help") == 0
    shown = capsys.readouterr().out
    for name in command_names():
        assert name.split()[0] in shown


def test_hidden_commands_are_not_in_help(capsys: pytest.CaptureFixture[str]) -> None:
    run_main("--help")
    shown = capsys.readouterr().out
    for entry in entries:
        if entry.hidden:
            assert entry.help not in shown


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("--version") == 0
    assert capsys.readouterr().out.startswith("headrace 0.")


def test_a_wrong_command_suggests_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("tenant") == 2
    assert "tenants" in capsys.readouterr().err


def test_in_a_log_the_last_line_of_a_usage_error_says_what_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main("usage", "--bogus") == 2
    assert capsys.readouterr().err.splitlines()[-1] == "Error: No such option: --bogus"


def test_an_operating_error_is_one_line_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_app(_: object) -> typer.Typer:
        app = typer.Typer()

        @app.command()
        def fail() -> None:
            raise ConfigurationError("port 80 is taken; choose another with --port")

        return app

    monkeypatch.setattr(main_module, "build_app", failing_app)
    assert run_main() == 1
    assert capsys.readouterr().err == "headrace: port 80 is taken; choose another with --port\n"


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> typer.Typer:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "build_app", interrupted)
    assert run_main() == 130


@pytest.mark.parametrize("entry", entries, ids=lambda entry: " ".join(entry.words))
def test_every_command_of_the_table_has_its_module_and_help(
    entry: main_module.CommandEntry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(*entry.words, "--help") == 0
    assert f"Usage: headrace {' '.join(entry.words)}" in capsys.readouterr().out


def test_help_imports_no_command_and_no_engine() -> None:
    program = (
        "import sys\n"
        "from headrace.cli.main import build_app\n"
        "build_app(['--help'])\n"
        "print([n for n in sys.modules if n in ('numpy', 'aiohttp', 'fastapi', 'sqlalchemy')"
        " or (n.startswith('headrace.cli.') and n != 'headrace.cli.main')])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("words", ["tenants list", "keys create", "usage", "doctor"])
def test_quick_commands_import_nothing_heavy(words: str) -> None:
    program = (
        "import sys\n"
        "from headrace.cli.main import build_app\n"
        f"build_app({words.split()!r})\n"
        "heavy = ('numpy', 'aiohttp', 'fastapi', 'pydantic', 'sqlalchemy', 'starlette')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["gateway", "control_parts", "run"])
def test_what_few_ask_for_is_loaded_when_it_is_used(module: str) -> None:
    """Requests to addresses of others, sign-on by OpenID Connect, TLS, clusters."""
    program = (
        f"import headrace.cli.{module}, sys\n"
        "seldom = ('aiohttp', 'authlib', 'joserfc', 'cryptography', 'kubernetes', 'ray',"
        " 'redis', 'psycopg', 'zmq')\n"
        "print([name for name in seldom if name in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"


def test_a_command_line_that_cannot_be_meant_is_answered_with_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main("run") == 2
    said = capsys.readouterr().err
    assert "Missing argument 'MODEL'" in said
    assert "For example: headrace run smollm2-135m-instruct\n`headrace models catalogue`" in said
    assert run_main("keys", "create") == 2
    assert "For example: headrace keys create --project" in capsys.readouterr().err
    assert run_main("explain", "nothing") == 2
    assert "For example" not in capsys.readouterr().err


@pytest.mark.parametrize(("words", "example"), main_module.examples.items())
def test_examples_are_of_their_command_and_its_options(
    words: tuple[str, ...], example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.split()[: len(words) + 1] == ["headrace", *words]
    assert run_main(*words, "--help") == 0
    said = capsys.readouterr().out
    assert all(word in said for word in example.split() if word.startswith("-"))
