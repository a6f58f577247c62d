"""A real Ray cluster of two nodes on this machine, with token authentication, small and bounded."""

import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.launchers.ray_launcher import connected

node_settings = {"include_dashboard": False, "object_store_memory": 80 << 20}
head_cpu_count = 4
worker_label = {"rack": "two"}
auth_token = secrets.token_hex(32)  # one for all clusters of a process: Ray reads it once


@contextmanager
def ray_cluster(cpu_count: int = head_cpu_count) -> Iterator[Any]:
    """The cluster, with its head of so many CPUs; this process is connected until the end."""
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": auth_token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": "120000",  # of a machine that is busy
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
    }
    ray: Any = importlib.import_module("ray")
    made: Any = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": cpu_count, **node_settings}
    )
    try:
        connected(made.address)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def add_node(cluster: Any, cpu_count: int = 2, device_type: str = "") -> Any:
    """A second node, with a label of its own, and with two devices of a type if it is given one.

    Ray takes its word for them: nothing that runs there finds a device."""
    devices = {"num_gpus": 2, "resources": {f"accelerator_type:{device_type}": 1.0}}
    return cluster.add_node(
        num_cpus=cpu_count,
        labels=worker_label,
        object_store_memory=80 << 20,
        **(devices if device_type else {}),
    )
