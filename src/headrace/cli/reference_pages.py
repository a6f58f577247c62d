"""The reference pages of the command line and of the errors, made from the code.

python -m headrace.cli.reference_pages cli > docs/reference/cli.md
python -m headrace.cli.reference_pages errors > docs/reference/errors.md
"""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

from headrace.base import errors
from headrace.cli import main

cli_opening = """# Command line

Made by `python -m headrace.cli.reference_pages cli`; a test fails when this page is not what that
command prints. `headrace COMMAND --help` says the same, with the defaults of your machine.

The platform's commands find a running `headrace up` by its data directory, or by `--admin-url` and
`HEADRACE_ADMIN_TOKEN`, and write JSON for programs with `--json`. A command ends with
status 0, or 1 and one line on standard error that says what to do; 2 is a wrong option, 130 is
Ctrl-C.
"""
errors_opening = """# Errors

Made by `python -m headrace.cli.reference_pages errors`; a test fails when this page is not what
that command prints.

Every API answers errors in OpenAI's shape (Anthropic's on `/v1/messages`, Ollama's under `/api`):
`{"error": {"message", "type", "param", "code", ...}}`. `code` is stable and made for programs, the
message is made for people and says what to do. A retryable error may go away by itself; where it is
known when, `Retry-After` says so.
"""
common_options = ("--json", "--admin-url", "--admin-token", "--data-dir", "--help")


def cli_page() -> str:
    """Every visible command with its arguments and options."""
    parts = [cli_opening]
    for entry in main.entries:
        if not entry.hidden:
            parts += command_sections(entry.words)
    return "\n".join(parts)


def command_sections(words: tuple[str, ...]) -> Iterator[str]:
    """The sections of one entry of the command table: the command, or each one of the group."""
    command: Any = typer.main.get_command(main.build_app([*words, "--help"]))
    for word in words:
        command = command.commands[word]
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield section((*words, name), child)
    else:
        yield section(words, command)


def section(words: tuple[str, ...], command: Any) -> str:
    """One command."""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    shown = [each for each in options if each.opts[0] not in common_options]
    usage = " ".join([main.program, *words, *map(argument_word, arguments)])
    lines = [f"## {main.program} {' '.join(words)}", "", (command.help or "").strip(), ""]
    lines += [f"    {usage}", ""]
    if shown:
        lines += ["| option | what it says | environment |", "| --- | --- | --- |"]
        lines += [option_row(each) for each in shown]
        lines.append("")
    return "\n".join(lines)


def argument_word(argument: Any) -> str:
    """An argument as usage lines show it."""
    word = argument.metavar or argument.name.upper()
    return word if argument.required else f"[{word}]"


def option_row(option: Any) -> str:
    """An option, what it says, and the variable that sets it."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    required = " Required." if option.required else ""
    text = " ".join((option.help or "").split()).replace("|", "\\|")
    known = option.envvar or ()
    variables = ", ".join(f"`{name}`" for name in ([known] if isinstance(known, str) else known))
    return f"| {names} | {text}{required} | {variables} |"


def errors_page() -> str:
    """Every operating error with its code and status."""
    rows = [
        " | ".join(
            (
                f"| `{kind.code}`",
                str(kind.http_status),
                errors.type_of_status.get(kind.http_status, "server_error"),
                "yes" if kind.retryable else "no",
                f"{first_sentence(kind)} |",
            )
        )
        for kind in error_kinds(errors.HeadraceError)
    ]
    head = ["| code | status | type | retryable | when |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([errors_opening, *head, *rows, ""])


def error_kinds(kind: type[errors.HeadraceError]) -> Iterator[type[errors.HeadraceError]]:
    """An error and those below it that are declared beside it, by status."""
    declared = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, kind)
    ]
    yield from sorted(declared, key=lambda each: (each.http_status, each.code))


def first_sentence(kind: type) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(kind) or "").splitlines()[0].replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write({"cli": cli_page, "errors": errors_page}[sys.argv[1]]())
