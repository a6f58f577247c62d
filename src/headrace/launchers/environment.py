"""What a launched engine inherits: the variables that programs need to run, and nothing else.

The platform's own environment has keys of upstreams, tokens and passwords; an engine is other
people's code. So variables pass by name, and what a name says is secret never passes. Whatever else
an engine needs, its deployment says (`environment`).
"""

import re
from collections.abc import Mapping

inherited_names = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ"),
        *("TMPDIR", "TMP", "TEMP", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        # Where weights lie and compiled kernels are kept; the key to fetch weights is not here.
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_XET_CACHE"),
        *("TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "TORCH_HOME", "TRITON_CACHE_DIR"),
        *("TORCHINDUCTOR_CACHE_DIR", "OLLAMA_MODELS"),
        # Of our own engine.
        *("HEADRACE_CACHE_DIR", "HEADRACE_CPU_ISA", "HEADRACE_LOAD_CHECKS"),
        *("HEADRACE_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    }
)
inherited_prefixes = (
    *("LC_", "XDG_", "CUDA_", "NVIDIA_", "NCCL_", "UCX_", "ROCR_", "HIP_", "HSA_", "ONEAPI_"),
    *("ZE_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMEXPR_"),
)
secret_name = re.compile(r"(KEY|TOKEN|SECRET|PASSW|CREDENTIAL)", re.IGNORECASE)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of a process's environment that its launches get."""
    return {name: value for name, value in environment.items() if is_inherited(name)}


def is_inherited(name: str) -> bool:
    """Whether launches get a variable of this name."""
    named = name in inherited_names or name.startswith(inherited_prefixes)
    return named and not says_secret(name)


def says_secret(name: str) -> bool:
    """Whether a variable's name says that its value is nobody else's."""
    return secret_name.search(name) is not None
