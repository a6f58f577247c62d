"""Questions that are asked as one: each gets its reply, or what went wrong with all of them."""

import asyncio
from collections.abc import Sequence

import pytest

from headrace.base.errors import Unavailable
from headrace.gateway.together import Together

patience_s = 60.0


class Store:
    """Doubles numbers; what it raises first is planned."""

    def __init__(self, fault: Exception) -> None:
        self._fault: Exception | None = fault

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        return [2 * number for number in numbers]


@pytest.mark.parametrize("fault", [Unavailable("away"), KeyError("what nobody foresaw")])
async def test_whatever_asking_raises_is_raised_at_all_that_wait_and_no_others(
    fault: Exception,
) -> None:
    together = Together[int, int](Store(fault))
    replies = await asyncio.gather(
        *(together.ask(number, patience_s) for number in (1, 2)), return_exceptions=True
    )
    assert replies == [fault, fault]
    assert await together.ask(3, patience_s) == 6
    await together.close()


async def test_too_few_replies_are_no_silence() -> None:
    together = Together[int, int](lambda _: [])
    with pytest.raises(ValueError, match="shorter"):
        await together.ask(1, patience_s)
