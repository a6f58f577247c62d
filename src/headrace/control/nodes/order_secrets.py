"""What an order for a node needs and the store must not have: it has the names of such variables.

The values follow from the pepper. They are put in as an order is handed to its node's agent.
"""

from collections.abc import Mapping

from headrace.spec.engine_key import engine_key
from headrace.spec.nodes import LaunchSecret, NodeLaunch
from headrace.spec.prefix_key import prefix_cache_key


def without_secrets(
    pepper: bytes, replica_id: str, salt: str, environment: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, LaunchSecret]]:
    """The variables that the store may have, and which secret each of the others is."""
    names = {value: name for name, value in values(pepper, replica_id, salt).items()}
    plain = {variable: text for variable, text in environment.items() if text not in names}
    secret = {variable: names[text] for variable, text in environment.items() if text in names}
    return plain, secret


def whole_environment(pepper: bytes, order: NodeLaunch) -> dict[str, str]:
    """An order's variables with the values of those that are secret."""
    known = values(pepper, order.name, order.engine_key_salt) if order.secrets else {}
    return {
        **order.environment,
        **{variable: known[secret] for variable, secret in order.secrets.items()},
    }


def values(pepper: bytes, replica_id: str, salt: str) -> dict[LaunchSecret, str]:
    """The secrets of one launch."""
    return {
        LaunchSecret.ENGINE_KEY: engine_key(pepper, replica_id, salt),
        LaunchSecret.PREFIX_KEY: prefix_cache_key(pepper).hex(),
    }
