"""The Python face of the compiled kernels, and one plain NumPy reference for each.

`CpuTransformer` runs a whole model's step (csrc/model); the rest says what this machine can do.
Reading order: `reference/` for what is computed, csrc/kernels/kernel_table.hpp for how.
"""

import os

from headrace.base.errors import ConfigurationError
from headrace.kernels._native import CpuTransformer, cpu_features, packed_layout
from headrace.kernels._native import has_fours as _native_has_fours
from headrace.kernels._native import kernel_name as _native_kernel_name
from headrace.kernels._native import measure_matrix_rate as _native_matrix_rate
from headrace.kernels._native import measure_read_bandwidth as _native_read_bandwidth

__all__ = [
    "CpuTransformer",
    "block_size_tokens",
    "cpu_features",
    "default_thread_count",
    "has_fours",
    "isa_limit",
    "kernel_name",
    "measure_matrix_gops",
    "measure_memory_gbps",
    "packed_layout",
]

block_size_tokens = 16  # tokens of a KV block; fixed by the attention kernel's layout

isa_environment_variable = "HEADRACE_CPU_ISA"
isa_choices = ("portable", "avx2", "avxvnni", "avx512", "dotprod", "i8mm")

bandwidth_probe_bytes = 512 << 20  # well past the last-level cache
probe_repeats = 5


def isa_limit() -> str:
    """The best instruction set that may be used, from HEADRACE_CPU_ISA; empty means no limit."""
    limit = os.environ.get(isa_environment_variable, "")
    if limit and limit not in isa_choices:
        raise ConfigurationError(
            f"{isa_environment_variable} is {limit!r}: use one of {', '.join(isa_choices)}, "
            "or unset it for the best that this CPU has",
            param=isa_environment_variable,
        )
    return limit


def kernel_name() -> str:
    """The kernels that a model loaded now would use, like "avx2", "avx-vnni" or "neon-i8mm"."""
    return _native_kernel_name(isa_limit())


def has_fours(activation_bits: int) -> bool:
    """Whether 8-bit weights would meet activations of 8 bits, each four with a multiplier."""
    return _native_has_fours(isa_limit(), activation_bits)


def default_thread_count() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


def measure_memory_gbps(threads: int | None = None) -> float:
    """Memory that all threads read together, in GB/s, measured. Takes about a second, 512 MiB."""
    count = threads or default_thread_count()
    return _native_read_bandwidth(count, bandwidth_probe_bytes, probe_repeats) / 1e9


def measure_matrix_gops(threads: int | None = None, activation_bits: int = 16) -> float:
    """The 4-bit matrix kernel's rate on cached operands, in 10^9 operations a second, measured."""
    count = threads or default_thread_count()
    return _native_matrix_rate(count, probe_repeats, isa_limit(), activation_bits) / 1e9
