"""Whoever may run code on a Ray cluster must show its token: never without, unless told so."""

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import ConfigurationError
from headrace.launchers.ray_launcher import authentication_variable, connected, namespace


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """In the place of the library: `modes` is how each connection was to prove itself."""
    fake: Any = ModuleType("ray")
    fake.modes = []
    fake.exceptions = SimpleNamespace(RayError=OSError)
    fake.refusal = None

    def init(**_: object) -> None:
        fake.modes.append(os.environ.get(authentication_variable))
        if fake.refusal is not None:
            raise fake.refusal

    fake.init = init
    fake.is_initialized = lambda: False
    fake.get_runtime_context = lambda: SimpleNamespace(namespace=namespace)
    monkeypatch.setitem(sys.modules, "ray", fake)
    for name in ("ray.util", "ray.util.scheduling_strategies"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setenv(authentication_variable, "")  # so that what is set here is taken back
    monkeypatch.delenv(authentication_variable)
    return fake


def test_a_cluster_is_asked_with_a_token(ray: Any) -> None:
    connected("ray://cluster")
    assert ray.modes == ["token"]


def test_an_operator_may_say_that_a_cluster_has_none(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(authentication_variable, "disabled")
    connected("ray://cluster")
    assert ray.modes == ["disabled"]


def test_a_wrong_token_says_what_to_give(ray: Any) -> None:
    ray.refusal = RuntimeError("unauthenticated")
    with pytest.raises(ConfigurationError, match="RAY_AUTH_TOKEN"):
        connected("ray://cluster")
