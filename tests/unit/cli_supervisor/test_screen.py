import io

import pytest
from rich.console import Console

from headrace.cli.supervisor.screen import Access, Part, StartScreen, show_access

access = Access(
    gateway_url="http://127.0.0.1:8080",
    admin_url="http://127.0.0.1:8081",
    admin_token="admin-token-" + "x" * 40,
    api_key="hr_" + "0" * 26 + "_" + "f" * 64,
    model_name="a-model",
)


def terminal(width: int = 60) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, no_color=True)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain(capsys: pytest.CaptureFixture[str], shown: Access) -> str:
    show_access(shown, Console(file=io.StringIO()))
    return capsys.readouterr().out


def test_a_pipe_gets_each_change_once(capsys: pytest.CaptureFixture[str]) -> None:
    loading = Part("a-0", "busy", "loading", "loading weights", 0.1)
    with StartScreen(Console(file=io.StringIO())) as screen:
        screen.show([loading])
        screen.show([Part("a-0", "busy", "loading", "loading weights", 0.9)])
        screen.show([Part("a-0", "ready", "ready", "ready")])

    assert capsys.readouterr().err.splitlines() == [
        "headrace: a-0: loading (loading weights)",
        "headrace: a-0: ready",
    ]


def test_a_terminal_shows_every_part() -> None:
    console = terminal()
    with StartScreen(console) as screen:
        screen.show(
            [
                Part("gateway", "ready", "ready"),
                Part("a-0", "busy", "loading", "weights", 0.5),
                Part("a-1", "failed", "failed", "no memory"),
            ]
        )
    for words in ("gateway", "a-0", "loading", "no memory"):
        assert words in text_of(console)


def test_what_is_to_be_pasted_is_whole_on_a_narrow_terminal() -> None:
    console = terminal(width=40)
    show_access(access, console)
    lines = text_of(console).splitlines()

    assert access.api_key is not None
    assert sum(access.api_key in line for line in lines) == 3  # alone, in curl, in Python
    assert sum(line.count(access.admin_token) for line in lines) == 1  # and nowhere else
    assert not any(line.endswith("\\ ") for line in lines)


def test_the_curl_example_goes_on_at_each_line_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = plain(capsys, access).splitlines()
    start = next(number for number, line in enumerate(lines) if "curl http" in line)

    assert [line.endswith("\\") for line in lines[start : start + 4]] == [True, True, True, False]
    assert lines[start + 3].strip().startswith("-d '{")


def test_the_python_example_is_python(capsys: pytest.CaptureFixture[str]) -> None:
    shown = plain(capsys, access)
    example = shown[shown.index("  from openai") : shown.index("Ctrl-C")]
    source = "\n".join(line.removeprefix("  ") for line in example.splitlines())

    compile(source, "example", "exec")
    assert 'model="a-model"' in source


def test_without_a_key_there_is_a_next_step_instead(capsys: pytest.CaptureFixture[str]) -> None:
    shown = plain(
        capsys,
        Access(access.gateway_url, access.admin_url, access.admin_token, None, None),
    )

    assert "headrace keys create" in shown
    assert "curl" not in shown
    assert "API key" not in shown
