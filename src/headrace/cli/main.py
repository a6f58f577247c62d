"""The `headrace` command: a table of commands, each of which imports its module only when asked.

Every command module exposes `register(app: typer.Typer) -> None`. Help for all commands comes from
the table, so that `headrace --help` and every start cost one small import and not the whole engine.
"""

import gc
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from headrace.base.errors import HeadraceError
from headrace.launchers import lifeline

program = "headrace"
interrupted_status = 130  # 128 + SIGINT, as shells report it
usage_status = 2  # of a command line that cannot be meant
# What is shown below such an error, by the words that were typed: what a first try lacks.
examples = {
    ("run",): "headrace run smollm2-135m-instruct",
    ("serve",): "headrace serve smollm2-135m-instruct --port 8000",
    ("check",): "headrace check model.gguf",
    ("quantize",): "headrace quantize model-f16.gguf model-q4.gguf --type q4_k",
    ("up",): "headrace up --model smollm2-135m-instruct",
    ("bench", "serve"): "headrace bench serve http://127.0.0.1:8000",
    ("plan",): "headrace plan qwen3-0.6b --device H100",
    ("tenants", "create"): "headrace tenants create acme",
    ("projects", "create"): "headrace projects create --tenant acme web",
    ("keys", "create"): "headrace keys create --project acme/web --name ci",
    ("models", "create"): "headrace models create demo --source smollm2-135m-instruct",
    ("deployments", "create"): "headrace deployments create demo --replicas 1",
}
names_models = frozenset({"run", "serve", "up"})  # commands whose models the catalogue has


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One row of the table: the words that call a command and the module that implements it."""

    words: tuple[str, ...]
    help: str
    module: str
    hidden: bool = False


entries = (
    CommandEntry(("run",), "Chat with a model in this terminal.", "run"),
    CommandEntry(("serve",), "Serve one model over an OpenAI-compatible API.", "serve"),
    CommandEntry(("quantize",), "Write a model's weights in another type, as GGUF.", "quantize"),
    CommandEntry(("check",), "Whether a model is whole and sound.", "check"),
    CommandEntry(("cache",), "Model files and packed weights on this disk: list, prune.", "cache"),
    CommandEntry(("up",), "Start the platform: gateway, control plane and replicas.", "up"),
    CommandEntry(("init",), "Write the secrets that gateways and control planes share.", "init"),
    CommandEntry(
        ("bench", "serve"), "Load an OpenAI-compatible server, and time it.", "bench_serve"
    ),
    CommandEntry(("bench", "engine"), "Time the engine against this machine.", "bench_engine"),
    CommandEntry(("capacity",), "How many devices a traffic needs for its objective.", "capacity"),
    CommandEntry(("sim",), "Simulate fleets on a virtual clock: run, list.", "sim"),
    CommandEntry(("doctor",), "Show what this machine can do and what is missing.", "doctor"),
    CommandEntry(("tenants",), "Who pays: create, list, show, update, credit.", "tenants"),
    CommandEntry(("projects",), "What a tenant groups work by: create, list, update.", "projects"),
    CommandEntry(("keys",), "What clients present: create, list, rotate, revoke.", "keys"),
    CommandEntry(("users",), "People with accounts: create, list, show, update.", "users"),
    CommandEntry(("members",), "Roles of people in tenants: add, list, remove.", "members"),
    CommandEntry(
        ("service-accounts",),
        "Programs that manage a tenant: create, list, revoke.",
        "service_accounts",
    ),
    CommandEntry(("audit",), "What was done, and by whom: list, export, verify.", "audit"),
    CommandEntry(("webhooks",), "Who is told of budgets: create, list, test.", "webhooks"),
    CommandEntry(
        ("models",), "Logical models and their versions: create, list, show, catalogue.", "models"
    ),
    CommandEntry(
        ("deployments",),
        "Models on engines: create, list, show, update, scale, rollout, delete.",
        "deployments",
    ),
    CommandEntry(
        ("nodes",), "Machines that run replicas: add, list, show, drain, cordon, remove.", "nodes"
    ),
    CommandEntry(("node",), "This machine as a node: join.", "node"),
    CommandEntry(("explain",), "Why: route, placement, scaling.", "explain"),
    CommandEntry(("plan",), "How many devices a model needs, and why.", "plan"),
    CommandEntry(("place",), "Where replicas would go on a described cluster, and why.", "place"),
    CommandEntry(("apply",), "Make the platform as files say: diff, prune.", "apply"),
    CommandEntry(("export",), "Write the platform's state as a file for apply.", "export"),
    CommandEntry(("replicas",), "Running engines: list.", "replicas"),
    CommandEntry(("top",), "Show what the platform does now.", "top"),
    CommandEntry(("prices",), "What models cost: apply, list, try, rate.", "prices"),
    CommandEntry(("costs",), "What devices cost, and the margin: show, prices.", "costs"),
    CommandEntry(("payments",), "Money that came: list, record, pay, refund, resolve.", "payments"),
    CommandEntry(("wallets",), "Credit of tenants: grant, list.", "wallets"),
    CommandEntry(
        ("invoices",),
        "What tenants owe: draft, finalize, list, show, credit, export, seller, profile.",
        "invoices",
    ),
    CommandEntry(("usage",), "Requests, tokens and cost, by tenant, model, day.", "usage"),
    CommandEntry(("ledger",), "The book of money and tokens: check.", "ledger"),
    CommandEntry(("limits",), "Limits that gateways share in Redis: recount.", "limits"),
    CommandEntry(("reconcile",), "Billed tokens against the engines' own counters.", "reconcile"),
    CommandEntry(("backup",), "Write all that the platform keeps into one file.", "backup"),
    CommandEntry(("restore",), "Read it back into an empty data directory.", "backup"),
    CommandEntry(("metrics",), "What a scraper on another machine has to show: token.", "metrics"),
    CommandEntry(("debug",), "What a maintainer needs: bundle.", "debug"),
    CommandEntry(
        ("manifests",), "Write what a Kubernetes cluster needs to run headrace.", "manifests"
    ),
    CommandEntry(("gateway",), "The gateway process of `headrace up`.", "gateway", hidden=True),
    CommandEntry(("control",), "The control plane of `headrace up`.", "control", hidden=True),
)
group_help = {"bench": "Measure a server or the engine: serve, engine."}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and end the process with its status; operating errors are one line.

    A command line that cannot be meant is answered with an example, where there is one."""
    build, arguments = (
        (build_for_good, sys.argv[1:]) if arguments is None else (build_app, list(arguments))
    )
    # Before the imports of a command, which take long enough for a supervisor to be killed.
    lifeline.watch_from_environment()
    try:
        build(arguments)(args=arguments, prog_name=program)
    except HeadraceError as error:
        print(f"{program}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return interrupted_status
    except SystemExit as leaving:
        if leaving.code == usage_status:
            print(hint(arguments), end="", file=sys.stderr)
        raise
    return 0


def hint(arguments: Sequence[str]) -> str:
    """How the command that was typed is called, in lines; empty if nothing is known of it."""
    typed = tuple(word for word in arguments if not word.startswith("-"))
    for words, example in examples.items():
        if typed[: len(words)] == words:
            more = "`headrace models catalogue` lists models by name.\n"
            return f"For example: {example}\n{more if words[0] in names_models else ''}"
    return ""


def build_for_good(arguments: Sequence[str]) -> typer.Typer:
    """The same as `build_app` for the only command of this process.

    What its modules make stays as long as the process, and is never looked at by the collector,
    which would take a quarter of the start."""
    gc.disable()
    app = build_app(arguments)
    gc.freeze()
    gc.enable()
    return app


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The command tree for `arguments`: the asked command is real, the others are help lines."""
    app = _new_group("Model files and accelerators in, LLM tokens as a service out.")
    app.callback()(_root)
    asked = tuple(word for word in arguments if not word.startswith("-"))
    groups = {"": app}
    for entry in entries:
        group = entry.words[0] if len(entry.words) > 1 else ""
        if group not in groups:
            groups[group] = _new_group(group_help[group])
            groups[group].callback()(_no_action)
            app.add_typer(groups[group], name=group)
        if asked[: len(entry.words)] == entry.words:
            importlib.import_module(f"headrace.cli.{entry.module}").register(groups[group])
        else:
            groups[group].command(entry.words[-1], help=entry.help, hidden=entry.hidden)(_no_action)
    return app


def command_names() -> Iterator[str]:
    """Every visible command as it is typed, in the order of the help page."""
    return (" ".join(entry.words) for entry in entries if not entry.hidden)


def _new_group(help_text: str) -> typer.Typer:
    # Frames are for terminals: in a log the last line of an error has to say what it is.
    framed = sys.stdout.isatty() and sys.stderr.isatty()
    return typer.Typer(
        help=help_text,
        rich_markup_mode="rich" if framed else None,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _no_action() -> None:
    """Stand in the help page for a command that was not asked for."""


def _show_version(wanted: bool) -> None:
    if wanted:
        metadata = importlib.import_module("importlib.metadata")  # 30 ms that others need not pay
        typer.echo(f"{program} {metadata.version(program)}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and leave.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Model files and accelerators in, LLM tokens as a service out."""


if __name__ == "__main__":
    sys.exit(main())
