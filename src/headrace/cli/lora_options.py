"""LoRA adapters of a deployment on the command line."""

from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError

Loras = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="NAME=SOURCE",
        help="A LoRA adapter that replicas load, which callers ask for as MODEL:NAME; repeatable. "
        "SOURCE is a path where replicas run, or a reference that their engine can fetch.",
    ),
]


def lora_bodies(texts: list[str] | None) -> list[dict[str, str]] | None:
    """The options as the admin API takes them; None if there are none."""
    if not texts:
        return None
    bodies = []
    for text in texts:
        name, equals, source = text.partition("=")
        if not (name and equals and source):
            raise ConfigurationError(f"--lora {text}: write it as NAME=SOURCE.")
        bodies.append({"name": name, "source": source})
    return bodies
