"""What launches inherit, by name."""

import pytest

from headrace.launchers.environment import inherited


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "HF_HOME"),
        *("CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "XDG_CACHE_HOME"),
        *("HEADRACE_CACHE_DIR", "HEADRACE_LOAD_CHECKS", "HEADRACE_OTLP_ENDPOINT"),
    ],
)
def test_what_programs_need_passes(name: str) -> None:
    assert inherited({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "ANTHROPIC_AUTH_TOKEN", "HF_TOKEN", "RAY_AUTH_TOKEN", "VLLM_API_KEY"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "KUBECONFIG", "HTTPS_PROXY"),
        *("HEADRACE_DATABASE_URL", "HEADRACE_LIMITS_URL", "HEADRACE_ADMIN_TOKEN"),
        *("HEADRACE_LIFELINE_FD", "OTEL_EXPORTER_OTLP_HEADERS", "SOMETHING_ELSE"),
        *("CUDA_LICENSE_KEY", "NCCL_SECRET", "XDG_PASSWORD"),  # of a group that passes
    ],
)
def test_nothing_else_passes(name: str) -> None:
    assert inherited({name: "x"}) == {}
