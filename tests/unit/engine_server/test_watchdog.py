"""What an engine's counters say of it."""

from headrace.engine_server.messages import Stats
from headrace.engine_server.watchdog import Verdict, Watchdog


def started() -> Watchdog:
    watchdog = Watchdog(step_timeout_s=100.0, hung_after_s=10.0)
    watchdog.start(1000.0)
    return watchdog


def working(steps: int) -> Stats:
    return Stats(running_requests=1, steps_total=steps)


def test_an_engine_that_steps_is_alive_however_long_it_runs() -> None:
    watchdog = started()
    for second in range(0, 500, 9):
        assert watchdog.judge(working(second), 1000.0 + second) is Verdict.ALIVE


def test_an_engine_with_work_and_no_step_is_hung_then_lost() -> None:
    watchdog = started()
    assert watchdog.judge(working(7), 1001.0) is Verdict.ALIVE
    assert watchdog.judge(working(7), 1010.9) is Verdict.ALIVE
    assert watchdog.judge(working(7), 1011.0) is Verdict.HUNG
    assert watchdog.judge(working(7), 1101.0) is Verdict.LOST


def test_an_engine_that_says_nothing_is_hung_then_lost() -> None:
    watchdog = started()
    assert watchdog.judge(None, 1010.0) is Verdict.HUNG
    assert watchdog.judge(None, 1100.0) is Verdict.LOST


def test_a_long_step_that_ends_makes_a_hung_engine_alive_again() -> None:
    watchdog = started()
    watchdog.judge(working(7), 1001.0)
    assert watchdog.judge(working(7), 1050.0) is Verdict.HUNG
    assert watchdog.judge(working(8), 1060.0) is Verdict.ALIVE
    assert watchdog.judge(working(8), 1069.0) is Verdict.ALIVE


def test_an_idle_engine_needs_no_steps() -> None:
    watchdog = started()
    for second in range(0, 500, 50):
        assert watchdog.judge(Stats(steps_total=7), 1000.0 + second) is Verdict.ALIVE


def test_an_engine_whose_requests_wait_for_a_grammar_or_for_kv_needs_no_steps() -> None:
    def waiting(**reasons: int) -> Stats:
        return Stats(waiting_requests=3, steps_total=7, waiting_by_reason=reasons)

    watchdog = started()
    assert watchdog.judge(waiting(grammar=2, kv_transfer=1), 1001.0) is Verdict.ALIVE
    assert watchdog.judge(waiting(grammar=2, kv_transfer=1), 1050.0) is Verdict.ALIVE
    assert watchdog.judge(waiting(grammar=2, capacity=1), 1059.0) is Verdict.ALIVE
    assert watchdog.judge(waiting(grammar=2, capacity=1), 1060.0) is Verdict.HUNG


def test_each_engine_process_is_judged_from_its_own_start() -> None:
    watchdog = started()
    watchdog.judge(working(7), 1001.0)
    watchdog.start(1200.0)
    assert watchdog.judge(working(7), 1201.0) is Verdict.ALIVE
    assert watchdog.judge(working(7), 1205.0) is Verdict.ALIVE
