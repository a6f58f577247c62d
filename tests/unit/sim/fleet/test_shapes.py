"""What a stream draws, in Python and C++ the same to the last bit."""

import pytest

from headrace.sim.fleet.lengths import Length
from headrace.sim.fleet.machinery import Machinery, compiled, plain
from headrace.sim.fleet.randomness import stream

short = Length(median=40, p90=300, maximum=500)
long = Length(median=1000, p90=3000, p99=9000, minimum=10)


@pytest.mark.parametrize("machinery", [plain, compiled], ids=["plain", "compiled"])
def test_a_number_below_a_count_is_the_one_that_the_library_draws(machinery: Machinery) -> None:
    ours, theirs = machinery.new_shapes(stream(1, "counts"), short, long), stream(1, "counts")
    for count in (1, 2, 3, 7, 64, 1000, 4097, 1 << 31):
        assert [ours.below(count) for _ in range(50)] == [
            theirs.randrange(count) for _ in range(50)
        ]


@pytest.mark.parametrize("seed", range(20))
def test_both_draw_the_same_in_any_order(seed: int) -> None:
    order = stream(seed, "order")
    ones, others = (m.new_shapes(stream(seed, "shapes"), short, long) for m in (plain, compiled))
    for _ in range(5000):  # the generator makes new words after each 624
        match order.randrange(4):
            case 0:
                assert ones.fresh_tokens() == others.fresh_tokens()
            case 1:
                assert ones.output_tokens() == others.output_tokens()
            case 2:
                assert ones.random() == others.random()
            case _:
                count = order.randrange(1, 2000)
                assert ones.below(count) == others.below(count)


def test_lengths_keep_to_their_bounds_on_both() -> None:
    drawn = [
        tuple(shapes.fresh_tokens() for _ in range(3000))
        for shapes in (m.new_shapes(stream(3, "shapes"), short, long) for m in (plain, compiled))
    ]
    assert drawn[0] == drawn[1]
    assert max(drawn[0]) == short.maximum
    assert min(drawn[0]) >= short.minimum


def test_a_count_that_nothing_is_below_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 to 2\*\*31"):
        compiled.new_shapes(stream(1, "counts"), short, long).below(0)
