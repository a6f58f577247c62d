"""What `headrace up` refuses before it starts anything."""

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.up import check_demo, check_ports


def test_one_port_for_two_listeners_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="both 8080; give each"):
        check_ports(8080, 8080)


@pytest.mark.parametrize("ports", [(8080, 8081), (0, 0)])
def test_free_ports_and_different_ones_are_taken(ports: tuple[int, int]) -> None:
    check_ports(*ports)


@pytest.mark.parametrize("count", [-1, 0, 65])
def test_a_number_of_replicas_has_bounds(count: int) -> None:
    with pytest.raises(ConfigurationError, match="it must be 1 to 64"):
        check_demo(True, count, None)


@pytest.mark.parametrize(("count", "model"), [(2, None), (None, "tiny.gguf")])
def test_the_demos_options_need_the_demo(count: int | None, model: str | None) -> None:
    with pytest.raises(ConfigurationError, match="are for --demo"):
        check_demo(False, count, model)
