"""`headrace plan`: how much memory a model needs, and how many devices; nothing has to run.

Of a model file without a device: what our own engine would take on this machine.
"""

from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigurationError
from headrace.cli import output
from headrace.cli.engine_settings import service_config
from headrace.cli.memory_check import plan_of
from headrace.cli.output import format_bytes
from headrace.cli.settings import AsJson
from headrace.control.planning.config_shape import read_config
from headrace.control.planning.device import parse_device
from headrace.control.planning.known_shapes import find_shape
from headrace.control.planning.layouts import Layout, Plan, make_plan
from headrace.control.planning.model_shape import ModelShape
from headrace.control.planning.precision import find_kv_bits, find_precision
from headrace.control.planning.sizes import Demand
from headrace.launchers.machine import read_memory
from headrace.weights.huggingface.directory import is_model_directory


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", help="How many devices a model needs, and why.")(plan)


def plan(
    model: Annotated[
        str,
        typer.Argument(help="A known model's name, the path of its config.json, or a model file."),
    ],
    *,
    device: Annotated[
        str | None,
        typer.Option(help="As in H100, A100:40GB, CPU:256GB; of a model file default: this one."),
    ] = None,
    context: Annotated[int, typer.Option(min=1, help="Tokens of one sequence at most.")] = 8192,
    concurrency: Annotated[int, typer.Option(min=1, help="Sequences at the same time.")] = 32,
    precision: Annotated[
        str | None, typer.Option(help="Of the weights; default: as they are published.")
    ] = None,
    kv: Annotated[str, typer.Option(help="Of the KV cache: bf16, fp8, q8_0.")] = "bf16",
    as_json: AsJson = False,
) -> None:
    """Size a model, and try every way to spread it over devices of one type."""
    if device is None:
        show_here(Path(model).expanduser(), context * concurrency, as_json=as_json)
        return
    shape = find_model(model)
    made = make_plan(
        shape,
        find_precision(precision or shape.native_precision),
        parse_device(device),
        Demand(context, concurrency, find_kv_bits(kv)),
    )
    if as_json:
        output.write_json(as_document(made))
        return
    output.write_fields(fields(made))
    output.write_table(
        (">DEVICES", ">REPLICAS", ">TENSOR", ">PIPELINE", ">WEIGHTS", ">KV FREE", ">WORK", ">SEQ",
         "NOTE"),
        [row(layout) for layout in made.layouts],
        empty="no layout is possible",
    )  # fmt: skip


def show_here(path: Path, kv_tokens: int, *, as_json: bool) -> None:
    """What our engine would take on this machine; ConfigurationError if it is no model file."""
    if not (path.is_file() and path.suffix != ".json") and not is_model_directory(path):
        raise ConfigurationError(
            f"{path} is no model file on this machine; name one, or pass --device."
        )
    config = service_config(
        path, path.stem, kv_tokens=kv_tokens, threads=None, context_length=None, max_num_seqs=1
    )
    found, available = plan_of(config.engine).plan, read_memory().available_bytes
    sizes = {
        "weights_bytes": found.weights_bytes,
        "kv_bytes": found.kv_bytes,
        "workspace_bytes": found.workspace_bytes,
        "swapped_kv_bytes": found.host_kv_bytes,
        "total_bytes": found.total_bytes,
        "available_bytes": available,
    }
    if as_json:
        output.write_json({**sizes, "fits": found.total_bytes <= available})
        return
    shown = [(name.removesuffix("_bytes"), format_bytes(size)) for name, size in sizes.items()]
    fits = "yes" if found.total_bytes <= available else "no"
    output.write_fields([*shown, ("fits", fits)])


def find_model(reference: str) -> ModelShape:
    """A known shape, or that of a configuration on this machine."""
    path = Path(reference).expanduser()
    return read_config(path) if path.exists() else find_shape(reference)


def fields(made: Plan) -> list[tuple[str, str]]:
    """The sizes, and the answer."""
    shape, demand, best = made.shape, made.demand, made.best
    active = shape.active_parameters
    parameters = f"{shape.parameters / 1e9:.2f} billion parameters"
    if shape.experts is not None:
        parameters += f", {active / 1e9:.2f} billion of them for each token"
    answer = "it fits in no layout; take a larger device, a shorter context or fewer bits"
    if best is not None:
        answer = (
            f"{best.devices} x {made.device.name}: {best.replicas} replica(s) of tensor parallel "
            f"{best.tensor_parallel}, pipeline parallel {best.pipeline_parallel}"
        )
    return [
        ("model", f"{shape.name}, {parameters}"),
        ("weights", f"{format_bytes(made.weights_bytes)} as {made.precision.name}"),
        (
            "KV",
            f"{format_bytes(made.kv_bytes)} for {demand.concurrency} sequences of "
            f"{demand.context_tokens:,} tokens, {format_bytes(made.kv_bytes_per_token)} a token",
        ),
        ("device", f"{made.device.name} with {format_bytes(made.device.memory_bytes)}"),
        ("answer", answer),
    ]


def row(layout: Layout) -> tuple[str, ...]:
    """One layout; sizes are of one device."""
    return (
        str(layout.devices or "-"),
        str(layout.replicas or "-"),
        str(layout.tensor_parallel),
        str(layout.pipeline_parallel),
        format_bytes(layout.weights_bytes),
        format_bytes(layout.kv_bytes_free),
        format_bytes(layout.workspace_bytes),
        str(layout.sequences),
        layout.reason or "-",
    )


def as_document(made: Plan) -> dict[str, object]:
    """The plan for programs; sizes in bytes."""
    best = made.best
    return {
        "model": made.shape.name,
        "parameters": made.shape.parameters,
        "active_parameters": made.shape.active_parameters,
        "precision": made.precision.name,
        "device": made.device.name,
        "device_memory_bytes": made.device.memory_bytes,
        "context_tokens": made.demand.context_tokens,
        "concurrency": made.demand.concurrency,
        "weights_bytes": made.weights_bytes,
        "kv_bytes": made.kv_bytes,
        "kv_bytes_per_token": made.kv_bytes_per_token,
        "devices": None if best is None else best.devices,
        "layouts": [layout_document(layout) for layout in made.layouts],
    }


def layout_document(layout: Layout) -> dict[str, object]:
    """One layout for programs."""
    return {
        "tensor_parallel": layout.tensor_parallel,
        "pipeline_parallel": layout.pipeline_parallel,
        "devices_per_replica": layout.devices_per_replica,
        "replicas": layout.replicas,
        "devices": layout.devices,
        "weights_bytes": layout.weights_bytes,
        "workspace_bytes": layout.workspace_bytes,
        "kv_bytes_free": layout.kv_bytes_free,
        "kv_bytes_needed": layout.kv_bytes_needed,
        "sequences": layout.sequences,
        "reason": layout.reason,
    }
