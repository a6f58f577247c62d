"""`headrace bench engine`: options that make no sense are named."""

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.bench_engine import parse_sizes


@pytest.mark.parametrize("text", ["", "a", "1,", "0", "-1", "1,9999"])
def test_wrong_sizes_name_their_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--batches"):
        parse_sizes("--batches", text, 1024)


def test_sizes_are_read_in_order() -> None:
    assert parse_sizes("--batches", "1,8,2", 1024) == [1, 8, 2]
