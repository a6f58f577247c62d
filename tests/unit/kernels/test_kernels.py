"""The choice of kernels and the machine probes."""

import pytest

from headrace import kernels
from headrace.base.errors import ConfigurationError
from headrace.kernels import _native


def test_the_environment_caps_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CPU_ISA", "portable")
    assert kernels.kernel_name() == "portable"


def test_without_a_cap_the_best_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_CPU_ISA", raising=False)
    best = "portable"
    features = set(kernels.cpu_features())
    if {"avx2", "fma", "f16c"} <= features:
        best = "avx-vnni" if "avx_vnni" in features else "avx2"
        if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"} <= features:
            best = "avx512-vnni"
    if "dotprod" in features:
        best = "neon-i8mm" if "i8mm" in features else "neon-dotprod"
    assert kernels.kernel_name() == best


def test_a_cap_falls_to_the_next_kernels_that_the_cpu_runs() -> None:
    families = (("avx512", "avxvnni", "avx2"), ("i8mm", "dotprod"))
    own = {"avx512": "avx512-vnni", "avxvnni": "avx-vnni", "avx2": "avx2"}
    own |= {"i8mm": "neon-i8mm", "dotprod": "neon-dotprod"}
    for family in families:
        below = "portable"
        for limit in reversed(family):
            assert _native.kernel_name(limit) in (own[limit], below)
            below = _native.kernel_name(limit)


def test_an_unknown_instruction_set_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CPU_ISA", "mmx")
    with pytest.raises(ConfigurationError, match="HEADRACE_CPU_ISA is 'mmx'"):
        kernels.kernel_name()


def test_the_probes_measure_something() -> None:
    assert kernels.measure_matrix_gops(threads=1) > 0
    assert _native.measure_read_bandwidth(2, 1 << 22, 1) > 0
