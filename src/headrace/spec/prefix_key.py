"""The secret under which a platform's engines and gateways name KV blocks alike."""

from headrace.spec.purpose_key import purpose_key

prefix_key_variable = "HEADRACE_PREFIX_KEY"  # in an engine's environment, in hexadecimal


def prefix_cache_key(pepper: bytes) -> bytes:
    """The key; nobody without the pepper can compute a hash, or tell what a prompt was by one."""
    return purpose_key(pepper, "prefix cache")
