from headrace.sim.fleet.randomness import stream
from headrace.sim.fleet.traffic import below


def test_a_streams_numbers_depend_on_seed_and_name_alone() -> None:
    alone = [stream(7, "arrivals").random() for _ in range(1)]
    beside = stream(7, "lengths")
    beside.random()
    assert stream(7, "arrivals").random() == alone[0]
    assert stream(7, "arrivals").random() != stream(7, "lengths").random()
    assert stream(7, "arrivals").random() != stream(8, "arrivals").random()


def test_a_number_below_a_count_is_the_one_that_the_library_draws() -> None:
    ours, theirs = stream(1, "counts"), stream(1, "counts")
    for count in (1, 2, 3, 7, 64, 1000, 4097):
        assert [below(count, ours) for _ in range(50)] == [
            theirs.randrange(count) for _ in range(50)
        ]
