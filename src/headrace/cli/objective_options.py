"""The options of a model's latency objectives, and how they are shown."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ObjectiveOptions:
    """What a good request takes at most; those given replace all that it had."""

    ttft_objective_s: Annotated[
        float | None, typer.Option(help="Seconds up to the first output of a good request.")
    ] = None
    inter_token_objective_s: Annotated[
        float | None, typer.Option(help="Seconds between two outputs of it, on average.")
    ] = None
    no_objectives: Annotated[
        bool, typer.Option("--no-objectives", help="Every request that finishes is good.")
    ] = False

    def body(self) -> dict[str, object]:
        """The options as the admin API takes them; empty if none was given."""
        given = {"ttft_s": self.ttft_objective_s, "inter_token_s": self.inter_token_objective_s}
        chosen = {name: value for name, value in given.items() if value is not None}
        if chosen and self.no_objectives:
            raise ConfigurationError("give objectives or --no-objectives, not both")
        if not chosen and not self.no_objectives:
            return {}
        return {"objectives": chosen}


class ObjectivesView(msgspec.Struct, frozen=True):
    """What is shown of objectives."""

    ttft_s: float | None
    inter_token_s: float | None


def objective_fields(objectives: ObjectivesView | None) -> list[tuple[str, str]]:
    """One line an objective that there is."""
    if objectives is None:
        return []
    shown = (
        ("first output", objectives.ttft_s),
        ("between outputs", objectives.inter_token_s),
    )
    return [(name, f"within {value:g} s") for name, value in shown if value is not None]
