"""`headrace bench serve URL`: load any OpenAI-compatible server and time its answers.

With `--json` it writes one object: what was asked (`url`, `model`, `endpoint`, `prompt_words`,
`shared_prefix_words`, `output_tokens`, `ignore_eos`, `seed`) and `levels`, one object each as
described by `loadgen.summary.LevelSummary`.
"""

import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
import uvloop

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import ConfigurationError, UpstreamFailed
from headrace.cli import output
from headrace.cli.loadgen.client import LoadClient, tokens_per_word, words_for_tokens
from headrace.cli.loadgen.runner import Level, requests_max, run_level
from headrace.cli.loadgen.summary import Distribution, LevelSummary, summarize
from headrace.cli.loadgen.workload import Workload, output_tokens_max, prompt_words_max
from headrace.cli.settings import ApiKeyOption, AsJson

concurrency_max = 10_000
levels_max = 32
prompt_words_default = 128
requests_per_slot = 4  # the default number of requests: enough for each slot to be reused


class ServeBench(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run asked and saw."""

    url: str
    model: str
    endpoint: str
    prompt_words: int
    shared_prefix_words: int
    output_tokens: int
    ignore_eos: bool
    seed: int
    levels: list[LevelSummary]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run, checked."""

    url: str
    api_key: str | None
    model: str | None
    chat: bool
    prompt_length: int
    shared_prefix_length: int
    lengths_in_tokens: bool
    output_tokens: int
    ignore_eos: bool
    seed: int
    warmup_requests: int
    request_timeout_s: float
    levels: tuple[Level, ...]


Concurrency = Annotated[str, typer.Option(help="Requests at a time; several levels as 1,8,32.")]
Rate = Annotated[
    float | None,
    typer.Option(help="Requests a second at random moments; concurrency is then the most."),
]
Requests = Annotated[
    int | None, typer.Option(help="Requests a level; default: 4 a slot, or --duration.")
]
Duration = Annotated[float | None, typer.Option(help="Seconds a level.")]
PromptTokens = Annotated[
    int | None, typer.Option(help="Prompt length in tokens, as the server counts them.")
]
PromptWords = Annotated[int | None, typer.Option(help="Prompt length in words; default: 128.")]
SharedPrefix = Annotated[
    int, typer.Option(help="So much of each prompt is the same, in the prompt's unit.")
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Ask for the full length (an engine extension).")
]
Completions = Annotated[
    bool, typer.Option("--completions", help="Ask /v1/completions instead of chat.")
]
Model = Annotated[str | None, typer.Option(help="Default: the first that the server offers.")]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("serve")(serve)


def serve(
    url: Annotated[str, typer.Argument(help="The server, as http://127.0.0.1:8000.")],
    *,
    concurrency: Concurrency = "1,8,32",
    rate: Rate = None,
    requests: Requests = None,
    duration: Duration = None,
    prompt_tokens: PromptTokens = None,
    prompt_words: PromptWords = None,
    shared_prefix: SharedPrefix = 0,
    output_tokens: Annotated[int, typer.Option(help="Most tokens of each answer.")] = 128,
    ignore_eos: IgnoreEos = False,
    completions: Completions = False,
    model: Model = None,
    warmup: Annotated[int, typer.Option(help="Requests before the first level.")] = 2,
    seed: Annotated[int, typer.Option(help="The same seed asks the same prompts.")] = 0,
    request_timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 600.0,
    api_key: ApiKeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Load an OpenAI-compatible server, and show TTFT, time between tokens and tokens a second."""
    if prompt_tokens is not None and prompt_words is not None:
        raise ConfigurationError("give --prompt-tokens or --prompt-words, not both")
    plan = Plan(
        url=url,
        api_key=api_key,
        model=model,
        chat=not completions,
        prompt_length=next(
            given
            for given in (prompt_tokens, prompt_words, prompt_words_default)
            if given is not None
        ),
        shared_prefix_length=shared_prefix,
        lengths_in_tokens=prompt_tokens is not None,
        output_tokens=output_tokens,
        ignore_eos=ignore_eos,
        seed=seed,
        warmup_requests=warmup,
        request_timeout_s=request_timeout,
        levels=plan_levels(concurrency, rate, requests, duration),
    )
    check(plan)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(run(plan, SystemClock()))
    if as_json:
        output.write_json(result)
    else:
        write_report(result)
    if not any(level.completed for level in result.levels):
        errors = result.levels[-1].errors
        raise UpstreamFailed(f"no request succeeded: {next(iter(errors), 'none was sent')}")


def plan_levels(
    concurrency: str, rate: float | None, requests: int | None, duration_s: float | None
) -> tuple[Level, ...]:
    """Read `1,8,32`; ConfigurationError names what is wrong."""
    try:
        slots = [int(part) for part in concurrency.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"--concurrency: {concurrency!r} is not a list of numbers such as 1,8,32"
        ) from None
    if not 1 <= len(slots) <= levels_max or not all(1 <= n <= concurrency_max for n in slots):
        raise ConfigurationError(
            f"--concurrency: up to {levels_max} levels of 1 to {concurrency_max:,}"
        )
    if rate is not None and not 0 < rate <= 1e6:
        raise ConfigurationError("--rate: more than 0 requests a second, and at most a million")
    if requests is not None and not 1 <= requests <= requests_max:
        raise ConfigurationError(f"--requests: 1 to {requests_max:,}")
    if duration_s is not None and not 0 < duration_s <= 86_400:
        raise ConfigurationError("--duration: more than 0 seconds, and at most a day")
    return tuple(
        Level(
            concurrency=count,
            request_count=(
                requests if requests or duration_s is not None else count * requests_per_slot
            ),
            duration_s=duration_s,
            rate_per_s=rate,
        )
        for count in slots
    )


def check(plan: Plan) -> None:
    """Refuse lengths that make no sense."""
    if not 1 <= plan.prompt_length <= prompt_words_max:
        raise ConfigurationError(f"--prompt-words or --prompt-tokens: 1 to {prompt_words_max:,}")
    if not 0 <= plan.shared_prefix_length <= plan.prompt_length:
        raise ConfigurationError("--shared-prefix: at most the prompt's length")
    if not 1 <= plan.output_tokens <= output_tokens_max:
        raise ConfigurationError(f"--output-tokens: 1 to {output_tokens_max:,}")
    if not 0 <= plan.warmup_requests <= 1000:
        raise ConfigurationError("--warmup: 0 to 1000")
    if not 0 < plan.request_timeout_s <= 86_400:
        raise ConfigurationError("--request-timeout: more than 0 seconds, and at most a day")


async def run(plan: Plan, clock: Clock) -> ServeBench:
    """Warm up, then run the levels one after another."""
    async with LoadClient(plan.url, plan.api_key, plan.request_timeout_s, clock) as client:
        workload = Workload(
            model=plan.model or await client.first_model(),
            prompt_words=plan.prompt_length,
            shared_prefix_words=plan.shared_prefix_length,
            output_tokens=plan.output_tokens,
            chat=plan.chat,
            ignore_eos=plan.ignore_eos,
            seed=plan.seed,
        )
        if plan.lengths_in_tokens:
            workload = await in_tokens(client, workload)
        for index in range(plan.warmup_requests):
            await client.ask(workload, workload.body("warmup", index))
        levels = []
        for level in plan.levels:
            show_progress(level)
            levels.append(summarize(await run_level(client, workload, level, clock)))
    return ServeBench(
        url=plan.url,
        model=workload.model,
        endpoint=workload.path,
        prompt_words=workload.prompt_words,
        shared_prefix_words=workload.shared_prefix_words,
        output_tokens=workload.output_tokens,
        ignore_eos=workload.ignore_eos,
        seed=workload.seed,
        levels=levels,
    )


async def in_tokens(client: LoadClient, workload: Workload) -> Workload:
    """The same workload with its lengths, so far in tokens, turned into words."""
    per_word, overhead_tokens = await tokens_per_word(client, workload)
    prompt_words = words_for_tokens(workload.prompt_words, per_word, overhead_tokens)
    prefix_words = round(workload.shared_prefix_words / per_word)
    return dataclasses.replace(
        workload,
        prompt_words=prompt_words,
        shared_prefix_words=min(prefix_words, prompt_words),
    )


def show_progress(level: Level) -> None:
    """Say what runs now, where someone watches."""
    if sys.stderr.isatty():
        rate = "" if level.rate_per_s is None else f", {level.rate_per_s:g} requests/s"
        output.note(f"concurrency {level.concurrency}{rate} ...")


def write_report(result: ServeBench) -> None:
    """Write the table and what needs saying about it."""
    columns = (
        ">CLIENTS",
        ">OK",
        ">FAILED",
        ">REQ/S",
        ">OUT TOK/S",
        ">TOTAL TOK/S",
        ">TTFT MS p50/p90/p99",
        ">ITL MS p50/p90/p99",
        ">LATENCY S p50/p99",
        ">PROMPT",
        ">OUT",
    )
    output.note(f"{result.model} at {result.url}{result.endpoint}")
    output.write_table(columns, [_row(level) for level in result.levels], empty="nothing ran")
    for line in remarks(result.levels):
        output.note(line)


def remarks(levels: Sequence[LevelSummary]) -> list[str]:
    """What a reader must know before believing the table."""
    lines = []
    for level in levels:
        name = f"concurrency {level.concurrency}"
        lines += [f"{name}: {count} x {text}" for text, count in level.errors.items()]
        if level.without_usage:
            lines.append(
                f"{name}: {level.without_usage} answers came without usage; their tokens are "
                "not counted"
            )
        if level.client_cpu_share > 0.8:
            lines.append(
                f"{name}: this client used {level.client_cpu_share:.0%} of a core; it may be the "
                "limit, not the server"
            )
    return lines


def _row(level: LevelSummary) -> tuple[str, ...]:
    answers = max(1, level.completed - level.without_usage)
    latency = level.latency_ms
    return (
        str(level.concurrency),
        str(level.completed),
        str(level.failed),
        f"{level.requests_per_s:.2f}",
        f"{level.output_tokens_per_s:.1f}",
        f"{level.total_tokens_per_s:.1f}",
        _percentiles(level.ttft_ms),
        _percentiles(level.itl_ms),
        "-" if latency is None else f"{latency.p50 / 1e3:.2f} / {latency.p99 / 1e3:.2f}",
        f"{level.prompt_tokens / answers:.0f}",
        f"{level.completion_tokens / answers:.0f}",
    )


def _percentiles(times: Distribution | None) -> str:
    return "-" if times is None else f"{times.p50:.1f} / {times.p90:.1f} / {times.p99:.1f}"
