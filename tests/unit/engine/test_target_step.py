"""Prompts beside answers being written are read in chunks that keep a step within a time."""

from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]
base_s, row_s = 0.010, 0.002


def timed(make_engine: Make, **fields: Any) -> Any:
    """An engine whose steps take as long as their rows say."""
    engine = make_engine(
        rows_max=64, num_blocks=200, max_model_len=600, caching=False, running_max=4, **fields
    )
    engine.during_step = lambda: engine.clock.advance(base_s + row_s * sum(engine.row_counts[-1]))
    return engine


def chunks_beside_an_answer(engine: Any) -> list[int]:
    """Rows of a long prompt's chunks while another request is answered, once costs are learnt."""
    engine.submit("warm", 300, max_tokens=30)
    engine.run()
    engine.submit("answer", 4, max_tokens=60)
    engine.step()
    first = len(engine.row_counts)
    engine.submit("prompt", 400, max_tokens=2)
    engine.run()
    assert engine.tokens["answer"] == engine.expected("answer")
    assert engine.tokens["prompt"] == engine.expected("prompt")
    return [max(rows) for rows in engine.row_counts[first:] if len(rows) == 2 and max(rows) > 1]


def test_a_chunk_takes_what_the_time_allows(make_engine: Make) -> None:
    chunks = chunks_beside_an_answer(timed(make_engine, target_step_s=0.080))
    wanted = (0.080 - base_s) / row_s - 1
    settled = chunks[len(chunks) // 2 : -1]
    assert settled
    assert all(0.7 * wanted <= rows <= wanted + 1 for rows in settled)


def test_without_a_target_a_chunk_takes_all_rows(make_engine: Make) -> None:
    chunks = chunks_beside_an_answer(timed(make_engine))
    assert max(chunks) == 63


def test_a_prompt_gets_on_however_slow_a_step_is(make_engine: Make) -> None:
    chunks = chunks_beside_an_answer(timed(make_engine, target_step_s=0.001))
    assert set(chunks[:-1]) == {16}


def test_where_nothing_decodes_a_step_takes_all_rows(make_engine: Make) -> None:
    engine = timed(make_engine, target_step_s=0.020)
    engine.submit("alone", 200, max_tokens=1)
    engine.run()
    assert [sum(rows) for rows in engine.row_counts] == [64, 64, 64, 8]
