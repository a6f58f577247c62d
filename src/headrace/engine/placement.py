"""Which device holds and computes which part of a model, as `--device-map` says it.

    cpu      any core, memory wherever the system gives it
    cpu:N    the cores and the memory of NUMA node N

    cpu:1                              everything
    0-11=cpu:0,12-23=cpu:1             each layer
    0-23=cpu:0,0-9.experts=cpu:1       the experts of some layers elsewhere
    numa                               layers evenly over all nodes
    cpu:0,cpu:1 or numa                with ranks: the devices of ranks 0 and 1, or a node each

A layer's device holds its weights and its KV; the embedding is with the first layer, the matrix
that gives logits with the last. Devices compute one after another, ranks at once.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.base.errors import ConfigurationError
from headrace.weights.architecture import ArchitectureSpec

option = "--device-map"
experts_option = "--n-cpu-moe"
spread = "numa"
entry_pattern = re.compile(r"(\d+)(?:-(\d+))?(\.experts)?=(\S+)")


@dataclass(frozen=True, slots=True)
class Device:
    """Cores with the memory that is near to them."""

    name: str
    cores: tuple[int, ...] = ()  # none: any
    free_bytes: int | None = None  # of its memory; None: the machine's


anywhere = Device("cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of a model, and its spec with each layer on one of them."""

    devices: tuple[Device, ...]
    spec: ArchitectureSpec


def place_layers(
    text: str | None, cpu_moe_layers: int, spec: ArchitectureSpec, nodes: Sequence[Device]
) -> Placement:
    """A device for every layer and its experts; ConfigurationError says what the map lacks.

    The experts of the first `cpu_moe_layers` layers are put on `cpu` whatever the map says."""
    if spec.encoder and text is not None:
        raise ConfigurationError(f"{option} is for models that generate text; leave it out.")
    if cpu_moe_layers and not spec.expert_count:
        raise ConfigurationError(
            f"{experts_option} places experts, and this model has none; leave it out."
        )
    if cpu_moe_layers > spec.num_layers:
        raise ConfigurationError(
            f"{experts_option} is {cpu_moe_layers}, and this model has {spec.num_layers} layers."
        )
    layers: list[str | None] = [None] * spec.num_layers
    experts: list[str | None] = [None] * spec.num_layers
    for first, last, of_experts, device in _entries(text, spec, nodes):
        if of_experts and not spec.expert_count:
            raise ConfigurationError(f"{option} places experts, and this model has none.")
        target = experts if of_experts else layers
        for layer in range(first, last + 1):
            if target[layer] is not None:
                raise ConfigurationError(f"{option} names layer {layer} twice; name it once.")
            target[layer] = device
    for layer in range(cpu_moe_layers):
        experts[layer] = anywhere.name
    missing = [layer for layer, name in enumerate(layers) if name is None]
    if missing:
        raise ConfigurationError(
            f"{option} leaves out layer {missing[0]}; name each of 0 to {spec.num_layers - 1}."
        )
    homes = [name or "" for name in layers]
    return _placed(
        spec, homes, [name or home for name, home in zip(experts, homes, strict=True)], nodes
    )


def place_ranks(text: str | None, ranks: int, nodes: Sequence[Device]) -> tuple[Device, ...]:
    """The device of each rank; ConfigurationError if there are not as many."""
    if text is None:
        return (anywhere,) * ranks
    if text == spread:
        return tuple(nodes[rank * len(nodes) // ranks] for rank in range(ranks))
    names = text.split(",")
    if "=" in text or len(names) not in (1, ranks):
        raise ConfigurationError(
            f"{option} is {text}: with {ranks} ranks give {ranks} devices, as in "
            f"{','.join([nodes[0].name, nodes[-1].name] + [anywhere.name] * (ranks - 2))}."
        )
    devices = [_device(name, nodes) for name in names]
    return tuple(devices * ranks if len(devices) == 1 else devices)


def _entries(
    text: str | None, spec: ArchitectureSpec, nodes: Sequence[Device]
) -> Iterator[tuple[int, int, bool, str]]:
    """First and last layer, whether their experts alone, and the device."""
    count = spec.num_layers
    if text == spread:
        for index, node in enumerate(nodes):
            first, end = (count * each // len(nodes) for each in (index, index + 1))
            if end > first:
                yield first, end - 1, False, node.name
        return
    if text is None or "=" not in text:
        yield 0, count - 1, False, anywhere.name if text is None else text
        return
    for entry in text.split(","):
        match = entry_pattern.fullmatch(entry.strip())
        if match is None:
            raise ConfigurationError(
                f"{option}: {entry!r} is no entry; write them like 0-11=cpu:0 or "
                "0-11.experts=cpu:1, with commas between."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < count:
            raise ConfigurationError(
                f"{option}: {entry!r} names layers that are not there; this model has 0 to "
                f"{count - 1}."
            )
        yield first, last, match[3] is not None, match[4]


def _placed(
    spec: ArchitectureSpec, layers: Sequence[str], experts: Sequence[str], nodes: Sequence[Device]
) -> Placement:
    used = experts if spec.expert_count else layers
    names = list(dict.fromkeys(name for pair in zip(layers, used, strict=True) for name in pair))
    devices = tuple(_device(name, nodes) for name in names)
    placed = tuple(
        replace(
            spec.layer(index), device=names.index(layer), experts_device=names.index(used[index])
        )
        for index, layer in enumerate(layers)
    )
    return Placement(devices, replace(spec, layers=placed) if len(names) > 1 else spec)


def _device(name: str, nodes: Sequence[Device]) -> Device:
    if name == anywhere.name:
        return anywhere
    for node in nodes:
        if node.name == name:
            return node
    known = ", ".join([anywhere.name, *(node.name for node in nodes)])
    raise ConfigurationError(
        f"{option} names the device {name!r}; this engine computes on CPUs, and this machine has "
        f"{known}."
    )
