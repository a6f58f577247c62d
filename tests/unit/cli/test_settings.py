"""Shared settings: where they come from and in which order."""

from pathlib import Path

import pytest
import typer

from headrace.cli import settings
from headrace.cli.settings import DataDir, default_cache_dir, default_data_dir


def shown_data_dir(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    app = typer.Typer()

    @app.command()
    def show(data_dir: DataDir) -> None:
        typer.echo(data_dir)

    with pytest.raises(SystemExit):
        app(args=list(arguments))
    return capsys.readouterr().out.strip()


def test_the_option_wins_over_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DATA_DIR", "/from/variable")
    assert shown_data_dir(capsys, "--data-dir", "/from/option") == "/from/option"
    assert shown_data_dir(capsys) == "/from/variable"


def test_xdg_homes_are_the_defaults() -> None:
    environment = {"XDG_DATA_HOME": "/data", "XDG_CACHE_HOME": "/cache"}
    assert default_data_dir(environment) == Path("/data/headrace")
    assert default_cache_dir(environment) == Path("/cache/headrace")


def test_a_relative_xdg_home_is_ignored() -> None:
    assert default_data_dir({"XDG_DATA_HOME": "data"}) == Path.home() / ".local/share/headrace"


def test_variables_name_the_directories_themselves() -> None:
    assert default_cache_dir({"HEADRACE_CACHE_DIR": "/x"}) == Path("/x")


@pytest.mark.parametrize("setting", settings.all_settings, ids=lambda setting: setting.name)
def test_every_setting_is_documented_and_has_its_own_variable(setting: settings.Setting) -> None:
    assert setting.doc.endswith(".")
    others = [other for other in settings.all_settings if other is not setting]
    assert setting.variable not in {other.variable for other in others}
