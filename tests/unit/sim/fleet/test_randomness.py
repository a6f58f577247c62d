from headrace.sim.fleet.randomness import stream


def test_a_streams_numbers_depend_on_seed_and_name_alone() -> None:
    alone = [stream(7, "arrivals").random() for _ in range(1)]
    beside = stream(7, "lengths")
    beside.random()
    assert stream(7, "arrivals").random() == alone[0]
    assert stream(7, "arrivals").random() != stream(7, "lengths").random()
    assert stream(7, "arrivals").random() != stream(8, "arrivals").random()
