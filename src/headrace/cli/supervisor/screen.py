"""What a person sees of `headrace up`: progress while it starts, then how to use it.

On a terminal the progress is redrawn in place; in a pipe each change is a line. Progress goes to
standard error, the result to standard output.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

bar_width = 24
marks = {"ready": ("✓", "green"), "failed": ("✗", "red"), "busy": ("•", "yellow")}


@dataclass(frozen=True, slots=True)
class Part:
    """One line of progress: a process of the platform, or a replica."""

    name: str
    mood: str  # a key of `marks`
    state: str
    detail: str = ""
    progress: float | None = None  # 0..1


@dataclass(frozen=True, slots=True)
class Access:
    """How to use a platform that is ready; what is None the store must provide."""

    gateway_url: str
    admin_url: str
    admin_token: str
    api_key: str | None
    model_name: str | None


class StartScreen:
    """Shows the parts until the block is left."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._spinner = Spinner("dots", Text("Starting headrace (Ctrl-C stops it)"))
        self._shown: dict[str, str] = {}  # the last line about each part, in a pipe

    def __enter__(self) -> "StartScreen":
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, parts: Sequence[Part]) -> None:
        """Show how far everything is now."""
        if self._live is not None:
            self._live.update(Group(self._spinner, Padding(_table(parts), (0, 0, 0, 2))))
            return
        for part in parts:
            line = f"{part.name}: {part.state}"
            # Progress in percent would be a line each; a pipe gets the steps.
            if part.detail and part.detail != part.state:
                line += f" ({part.detail})"
            if self._shown.get(part.name) != line:
                self._shown[part.name] = line
                print(f"headrace: {line}", file=sys.stderr, flush=True)


def _table(parts: Sequence[Part]) -> Table:
    table = Table.grid(padding=(0, 2))
    for part in parts:
        mark, colour = marks[part.mood]
        progress = (
            Text(part.detail, style="dim", overflow="ellipsis", no_wrap=True)
            if part.progress is None
            else ProgressBar(total=1.0, completed=part.progress, width=bar_width)
        )
        table.add_row(Text(mark, style=colour), part.name, Text(part.state, colour), progress)
    return table


def show_access(access: Access, console: Console | None = None) -> None:
    """Show how to use the platform: addresses, secrets, and examples that can be pasted."""
    console = console or Console(highlight=False, emoji=False)
    if not console.is_terminal:
        sys.stdout.write(_plain(access))
        sys.stdout.flush()
        return
    console.print(Text("✓ headrace is ready", style="bold green"))
    console.print()
    # Nothing is wrapped, padded or boxed: a broken line cannot be pasted.
    for name, value in _fields(access):
        line = Text.assemble((f"  {name:<13}", "bold"), (value, "cyan"))
        console.print(line, soft_wrap=True)
    console.print()
    for title, text in _examples(access):
        console.print(Text(title, style="bold"))
        console.print(Text(text, style="cyan"), soft_wrap=True)
        console.print()
    console.print(Text(_farewell, style="dim"))


_farewell = "Ctrl-C stops everything. The key and the token are shown this once."


def _plain(access: Access) -> str:
    lines = ["headrace is ready", ""]
    lines += [f"  {name:<13}{value}" for name, value in _fields(access)]
    for title, text in _examples(access):
        lines += ["", f"{title}:", "", *(f"  {line}" if line else "" for line in text.split("\n"))]
    return "\n".join([*lines, "", _farewell, ""])


def _fields(access: Access) -> list[tuple[str, str]]:
    fields = [("Gateway", f"{access.gateway_url}/v1")]
    if access.api_key is not None:
        fields.append(("API key", access.api_key))
    fields += [("Console", access.admin_url), ("Admin token", access.admin_token)]
    return fields


def _examples(access: Access) -> list[tuple[str, str]]:
    """Title and text of what can be pasted; a hint where there is no key."""
    if access.api_key is None or access.model_name is None:
        hint = "headrace keys create --help\nheadrace deployments list"
        return [("Next, in another terminal", hint)]
    curl = (
        f"curl {access.gateway_url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {access.api_key}' \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f'  -d \'{{"model":"{access.model_name}",'
        '"messages":[{"role":"user","content":"Hello!"}]}\''
    )
    python = (
        "from openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{access.gateway_url}/v1", api_key="{access.api_key}")\n'
        "answer = client.chat.completions.create(\n"
        f'    model="{access.model_name}",\n'
        '    messages=[{"role": "user", "content": "Hello!"}],\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )
    return [("With curl", curl), ("With Python", python)]
