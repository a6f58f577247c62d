"""Whether an engine can be given a deployment's public prompts; see `spec/public_prompts.py`."""

from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest
from headrace.spec.deployments import Template
from headrace.spec.public_prompts import deployment_bytes_max, lines_of, prompts_max


def check_public_prompts(template: Template) -> None:
    """InvalidRequest if the engine shares none between tenants, or they are too large."""
    prompts = template.public_prompts
    if not prompts:
        return
    if template.upstream is not None or not find_adapter(template.engine).facts.shares_prompts:
        raise InvalidRequest(
            f"{template.engine} is given no public prompts by headrace; leave public_prompts out, "
            "or use an engine that is.",
            param="public_prompts",
        )
    size_bytes = len(lines_of(prompts))
    if len(prompts) > prompts_max or size_bytes > deployment_bytes_max:
        raise InvalidRequest(
            f"public_prompts: {len(prompts)} prompts of {size_bytes:,} bytes are too many; a "
            f"deployment has {prompts_max} of {deployment_bytes_max:,} bytes at most.",
            param="public_prompts",
        )
