"""The devices of this machine that an engine can place a model on: its NUMA nodes."""

import os
from pathlib import Path

from headrace.engine.placement import Device, Placement, place_layers, place_ranks
from headrace.engine.ranks import check_ranks
from headrace.engine_server.messages import EngineConfig
from headrace.kernels import default_thread_count
from headrace.launchers.numa import numa_dir, read_nodes
from headrace.weights.architecture import ArchitectureSpec


def machine_devices(directory: Path = numa_dir) -> tuple[Device, ...]:
    """The nodes whose cores this process may use, as `cpu:0` and so on."""
    return tuple(
        Device(f"cpu:{node.number}", node.cores, node.free_bytes) for node in read_nodes(directory)
    )


def placement_of(
    config: EngineConfig, spec: ArchitectureSpec, nodes: tuple[Device, ...]
) -> Placement:
    """Where a configuration puts a model: its layers, or with several ranks the ranks.

    ConfigurationError if the model or this machine does not allow it."""
    if config.tensor_parallel == 1:
        return place_layers(config.device_map, config.cpu_moe_layers, spec, nodes)
    check_ranks(spec, config.tensor_parallel, config.cpu_moe_layers)
    return Placement(place_ranks(config.device_map, config.tensor_parallel, nodes), spec)


def threads_of_rank(config: EngineConfig, rank: int, devices: tuple[Device, ...]) -> int:
    """Compute threads of one rank: its share of --threads, or of its device's cores."""
    if config.threads is not None:
        return max(1, config.threads // config.tensor_parallel)
    device = devices[rank]
    cores = len(device.cores) or default_thread_count()
    return max(1, cores // devices.count(device))


def stay_on(device: Device) -> None:
    """Keep this process, and what it starts from now on, on the device's cores.

    What it touches first then lies in that node's memory."""
    if device.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, device.cores)
