"""Sound and images through a real gateway, by OpenAI's own client, to an engine by documents."""

import asyncio
import base64
import io
import wave
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import openai
import pytest

from headrace.gateway import media_form
from headrace.ledger.rating import rated_late
from headrace.ledger.reservation import Outcome, TokenUsage, UsageSource
from headrace.sim.gateway_site import GatewaySite, gateway_site, make_id, model_name, price, serving
from headrace.sim.media_engine import MediaEngine, picture, sound
from headrace.spec.prices import Price, PriceBook, PriceVersion, UnitPrices
from headrace.spec.settlements import UnitCounts


@asynccontextmanager
async def heard(
    directory: Path, *engines: MediaEngine, credit_nanousd: int | None = None
) -> AsyncIterator[tuple[GatewaySite, openai.AsyncOpenAI]]:
    """A gateway over engines that are called vLLM's."""
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(engine)) for engine in engines]
        site = await stack.enter_async_context(
            gateway_site(
                directory,
                [],
                addresses=addresses,
                engine="vllm",
                credit_floor_nanousd=None if credit_nanousd is None else 0,
                credit_nanousd=credit_nanousd or 0,
            )
        )
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(api_key=site.api_key, base_url=site.url + "/v1", max_retries=0)
        )
        yield site, client


async def post_form(client: openai.AsyncOpenAI, path: str) -> object:
    """Send a form to a route for which the client has a method no more."""
    return await client.post(
        path,
        cast_to=object,
        body={"model": model_name},
        files={"file": ("a.bin", sound)},
        options={"headers": {"Content-Type": "multipart/form-data"}},
    )


async def test_a_sound_is_written_down_and_charged_by_the_engines_tokens(tmp_path: Path) -> None:
    engine = MediaEngine()
    async with heard(tmp_path, engine) as (site, client):
        text = await client.audio.transcriptions.create(
            model=model_name,
            file=("söund \r\nX: y.wav", sound, "audio/wav"),
            language="en",
            timestamp_granularities=["word", "segment"],
        )
        (settlement,) = await site.settlements(1)
    assert text.text == "Hello there."
    (sent,) = engine.seen
    assert sent.part("file").data == sound
    assert sent.part("file").content_type == "audio/wav"
    assert sent.fields["model"] == "fake"  # the engine's own name of it
    assert sent.fields["language"] == "en"
    assert [part.data for part in sent.parts if part.name.startswith("timestamp")] == [
        b"word",
        b"segment",
    ]
    assert settlement.usage == TokenUsage(30, 0, 5)
    assert settlement.source is UsageSource.ENGINE


async def test_what_no_engine_counted_is_unrated_and_never_0(tmp_path: Path) -> None:
    async with heard(tmp_path, MediaEngine(counts_tokens=False)) as (site, client):
        await post_form(client, "/audio/translations")
        (settlement,) = await site.settlements(1)
        await site.booked(1)
        rated = site.database.late_rating.rate(
            lambda *_: PriceVersion("prb", price), rated_late, 0.0, 2.0**40
        )
        assert site.database.ledger.check() == []
    assert settlement.outcome is Outcome.FINISHED
    assert settlement.usage == TokenUsage()
    assert settlement.source is UsageSource.UNMETERED
    assert settlement.amount_nanousd is None
    assert settlement.price_book_id is None
    assert rated == 0


by_units = Price(
    input_nanousd_per_million=0,
    cached_input_nanousd_per_million=0,
    output_nanousd_per_million=0,
    units=UnitPrices(
        per_request_nanousd=1_000,
        per_image_nanousd=40_000_000,
        per_second_nanousd=100_000,
        per_character_nanousd=15_000,
    ),
)


def price_by_units(site: GatewaySite) -> None:
    """From now on the model is priced by requests, images, seconds and characters."""
    book = PriceBook(
        id=make_id("prb", 9), name="units", create_time=1.0, effective_time=1.0,
        prices={model_name: by_units},
    )  # fmt: skip
    site.database.store.create(book)


async def test_units_are_charged_where_no_engine_counts_tokens(tmp_path: Path) -> None:
    engine = MediaEngine(counts_tokens=False)
    async with heard(tmp_path, engine, credit_nanousd=10**9) as (site, client):
        price_by_units(site)
        await site.gateway.follower.load()
        await post_form(client, "/audio/transcriptions")
        await client.audio.speech.create(model=model_name, voice="a", input="Grüße")
        await client.images.generate(model=model_name, prompt="a mill", n=2)
        heard_, spoken, made = await site.settlements(3)
        await site.booked(3)
        assert site.database.ledger.check() == []
        [row] = site.database.ledger.usage(("model",))
    assert heard_.units == UnitCounts(1, 0, 3000)
    assert heard_.amount_nanousd == 1_000 + 3 * 100_000
    assert spoken.units == UnitCounts(1, 0, 0, 5)
    assert spoken.amount_nanousd == 1_000 + 5 * 15_000
    assert made.units == UnitCounts(1, 2)
    assert made.amount_nanousd == 1_000 + 2 * 40_000_000
    assert (row.images, row.audio_ms, row.characters, row.unrated) == (2, 3000, 5, 0)


async def test_an_engine_that_tells_no_length_leaves_its_work_unrated(tmp_path: Path) -> None:
    engine = MediaEngine(counts_tokens=False, seconds=None)
    async with heard(tmp_path, engine, credit_nanousd=10**9) as (site, client):
        price_by_units(site)
        await site.gateway.follower.load()
        await post_form(client, "/audio/transcriptions")
        (settlement,) = await site.settlements(1)
    assert settlement.units == UnitCounts(1, 0, None)
    assert (settlement.source, settlement.amount_nanousd) == (UsageSource.UNMETERED, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": "text"},
        {"response_format": "srt"},
        {"response_format": "vtt"},
        {"response_format": "json ", "stream": "false"},
        {"stream": "true"},
        {"stream": "True", "response_format": "json"},
        {"stream": "t"},
    ],
)
async def test_a_caller_cannot_choose_that_a_price_by_the_second_finds_no_length(
    tmp_path: Path, fields: dict[str, str]
) -> None:
    engine = MediaEngine(counts_tokens=False)
    async with heard(tmp_path, engine, credit_nanousd=10**9) as (site, _):
        price_by_units(site)
        await site.gateway.follower.load()
        status, said = await sent(site, fields, sound)
        assert (status, engine.seen) == (400, [])
        assert "WAV" in said
        status, said = await sent(site, fields, wave_of(2.0))
        assert status == 200, said
        (settlement,) = await site.settlements(1)
    assert settlement.amount_nanousd in (1_000 + 2 * 100_000, 1_000 + 3 * 100_000)  # 3: it was told


async def test_what_decides_a_price_is_not_said_twice(tmp_path: Path) -> None:
    engine = MediaEngine()
    async with heard(tmp_path, engine) as (site, _):
        for path, fields in (
            ("/v1/images/edits", [("n", "1"), ("n", "10")]),
            ("/v1/audio/transcriptions", [("response_format", "json"), ("response_format", "srt")]),
            ("/v1/audio/transcriptions", [("stream", "false"), ("stream", "true")]),
        ):
            status, said = await sent(site, fields, sound, path)
            assert status == 400
            assert f"{fields[0][0]!r} twice" in said
    assert engine.seen == []


async def test_a_file_that_is_longer_than_its_bytes_tell_overruns_nothing(tmp_path: Path) -> None:
    """Silence, compressed: ten hours in ten thousand bytes."""
    engine = MediaEngine(counts_tokens=False, seconds=36_000)
    credit_nanousd = 4_000_000
    async with heard(tmp_path, engine, credit_nanousd=credit_nanousd) as (site, _):
        price_by_units(site)
        await site.gateway.follower.load()
        statuses = [(await sent(site, {}, sound))[0] for _ in range(4)]
        settled = await site.settlements(2)
        await site.booked(2)
        assert site.database.ledger.check() == []
        (balance,) = site.database.ledger.balances().values()
    assert statuses == [200, 200, 402, 402]
    for each in settled:
        assert each.units.audio_ms == 36_000_000
        assert each.charge is not None
        assert each.amount_nanousd == 1_000 + 13_800 * 100  # what its bytes come to, and a second
        assert each.charge.waived_nanousd == 36_000 * 100_000 - 13_800 * 100
    assert balance == credit_nanousd - 2 * (1_000 + 13_800 * 100) >= 0


async def sent(
    site: GatewaySite,
    fields: dict[str, str] | list[tuple[str, str]],
    file: bytes,
    path: str = "/v1/audio/transcriptions",
) -> tuple[int, str]:
    """Status and answer of a form with these fields."""
    form = aiohttp.FormData()
    form.add_field("model", model_name)
    for name, value in fields.items() if isinstance(fields, dict) else fields:
        form.add_field(name, value)
    form.add_field("file", file, filename="a.bin")
    headers = {"authorization": f"Bearer {site.api_key}"}
    async with (
        aiohttp.ClientSession(site.url, headers=headers) as session,
        session.post(path, data=form) as answer,
    ):
        return answer.status, await answer.text()


def wave_of(seconds: float) -> bytes:
    """Silence as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16_000)
        written.writeframes(bytes(int(seconds * 16_000) * 2))
    return file.getvalue()


async def test_a_budget_holds_for_what_is_priced_by_image(tmp_path: Path) -> None:
    async with heard(tmp_path, MediaEngine(), credit_nanousd=130_000_000) as (site, client):
        price_by_units(site)
        await site.gateway.follower.load()

        async def made() -> int:
            try:
                await client.images.generate(model=model_name, prompt="a mill", n=1)
            except openai.APIStatusError as error:
                return error.status_code
            return 200

        statuses = await asyncio.gather(*(made() for _ in range(12)))
        settled = await site.settlements(3)
    assert sorted(statuses) == [200] * 3 + [402] * 9
    assert sum(each.amount_nanousd or 0 for each in settled) == 3 * 40_001_000


async def test_plain_text_and_events_pass_as_they_are(tmp_path: Path) -> None:
    async with heard(tmp_path, MediaEngine()) as (site, client):
        plain = await client.audio.transcriptions.create(
            model=model_name, file=("a.mp3", sound), response_format="text"
        )
        stream = await client.audio.transcriptions.create(
            model=model_name, file=("a.mp3", sound), stream=True
        )
        events = [event.type async for event in stream]
        plain_settled, streamed = await site.settlements(2)
    assert str(plain) == "Hello there.\n"
    assert events == ["transcript.text.delta", "transcript.text.done"]
    assert plain_settled.source is UsageSource.UNMETERED
    assert streamed.usage == TokenUsage(30, 0, 5)


async def test_speech_comes_as_it_is_made_and_an_abort_ends_it(tmp_path: Path) -> None:
    engine = MediaEngine()
    async with heard(tmp_path, engine) as (site, client):
        whole = await client.audio.speech.create(model=model_name, voice="a", input="Hello")
        assert whole.content == sound
        assert whole.response.headers["content-type"] == "audio/mpeg"
        engine.gate = asyncio.Event()
        url = f"{site.url}/v1/audio/speech"
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            body = {"model": model_name, "voice": "a", "input": "Hello"}
            answer = await session.post(url, json=body)
            assert await answer.content.readexactly(100) == sound[:100]  # before the rest is made
            answer.close()
        finished, aborted = await site.settlements(2)
        engine.gate.set()
    assert engine.seen[0].fields == {"model": "fake", "voice": "a", "input": "Hello"}
    assert (finished.outcome, aborted.outcome) == (Outcome.FINISHED, Outcome.ABORTED)
    assert aborted.source is UsageSource.UNMETERED


async def test_images_are_made_and_changed(tmp_path: Path) -> None:
    engine = MediaEngine()
    async with heard(tmp_path, engine) as (site, client):
        made = await client.images.generate(model=model_name, prompt="a mill", n=2)
        changed = await client.images.edit(
            model=model_name, prompt="its wheel", image=[("a.png", picture), ("b.png", picture)]
        )
        settled = await site.settlements(2)
    assert [base64.b64decode(image.b64_json or "") for image in made.data or ()] == [picture] * 2
    assert len(changed.data or ()) == 1
    assert [part.data for part in engine.seen[1].parts if part.filename] == [picture] * 2
    assert [each.usage for each in settled] == [
        TokenUsage(8, 0, 200, image_tokens=0),
        TokenUsage(72, 0, 100, image_tokens=64),
    ]


async def test_an_engine_without_the_route_is_a_404_in_words(tmp_path: Path) -> None:
    async with heard(tmp_path, MediaEngine()) as (site, client):
        with pytest.raises(openai.NotFoundError, match="does not offer /v1/images/variations"):
            await post_form(client, "/images/variations")
        (settlement,) = await site.settlements(1)
    assert settlement.outcome is Outcome.REJECTED


async def test_what_the_engine_refuses_costs_nothing(tmp_path: Path) -> None:
    engine = MediaEngine()
    engine.refusal = 400
    async with heard(tmp_path, engine) as (site, client):
        with pytest.raises(openai.BadRequestError):
            await client.audio.transcriptions.create(model=model_name, file=("a.wav", b"noise"))
        (settlement,) = await site.settlements(1)
    assert (settlement.outcome, settlement.usage) == (Outcome.REJECTED, TokenUsage())


async def test_limits_are_reserved_for_the_worst_case(tmp_path: Path) -> None:
    engine = MediaEngine()
    async with heard(tmp_path, engine, credit_nanousd=1000) as (_, client):
        with pytest.raises(openai.APIStatusError) as refused:
            await client.images.generate(model=model_name, prompt="a mill")
    assert refused.value.status_code == 402
    assert engine.seen == []


async def test_a_form_beyond_memory_is_relayed_whole_and_one_beyond_the_bound_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = MediaEngine()
    large = bytes(3 * 1024 * 1024)
    async with heard(tmp_path, engine) as (_, client):
        await client.audio.transcriptions.create(model=model_name, file=("a.wav", large))
        assert engine.seen[0].part("file").data == large
        monkeypatch.setattr(media_form, "form_bytes_max", 1024 * 1024)
        with pytest.raises(openai.APIStatusError) as refused:
            await client.audio.transcriptions.create(
                model=model_name, file=("a.wav", io.BytesIO(large))
            )
    assert refused.value.status_code == 413


async def test_a_retry_sends_the_form_again(tmp_path: Path) -> None:
    dying, healthy = MediaEngine(), MediaEngine()
    dying.refusal = 503
    async with heard(tmp_path, dying, healthy) as (site, client):
        for _ in range(6):
            await client.audio.transcriptions.create(model=model_name, file=("a.wav", sound))
        settlements = await site.settlements(6)
    assert dying.seen
    assert [sent.part("file").data for sent in healthy.seen] == [sound] * 6
    assert [each.usage for each in settlements] == [TokenUsage(30, 0, 5)] * 6


async def test_a_key_replays_an_answer_to_a_form(tmp_path: Path) -> None:
    engine = MediaEngine()
    async with heard(tmp_path, engine) as (site, client):
        for _ in range(2):
            await client.audio.transcriptions.create(
                model=model_name, file=("a.wav", sound), extra_headers={"Idempotency-Key": "k"}
            )
        with pytest.raises(openai.UnprocessableEntityError):
            await client.audio.transcriptions.create(
                model=model_name, file=("a.wav", picture), extra_headers={"Idempotency-Key": "k"}
            )
        settlements = await site.settlements(1)
    assert len(engine.seen) == len(settlements) == 1


boundary = "xyz"
broken_forms = (
    b"",
    b"--xyz\r\n",
    b"--xyz--\r\n",
    b'--xyz\r\nContent-Disposition: form-data; name="model"\r\n\r\ndemo\r\n--xyz--\r\n',
    b'--xyz\r\nContent-Disposition: form-data; name="a b"\r\n\r\nx\r\n--xyz--\r\n',
    b"--xyz\r\nContent-Type: text/plain\r\n\r\nx\r\n--xyz--\r\n",
    b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--xyz--\r\n',
    b'--xyz\r\nContent-Disposition: form-data; name="n"\r\n\r\nx\r\n' * 2 + b"--xyz--\r\n",
)


async def test_broken_forms_are_400_and_reach_nothing(tmp_path: Path) -> None:
    engine = MediaEngine()
    async with heard(tmp_path, engine) as (site, _):
        headers = {"Authorization": f"Bearer {site.api_key}"}
        async with aiohttp.ClientSession(site.url, headers=headers) as session:
            for path in ("/v1/audio/transcriptions", "/v1/images/edits"):
                for form in broken_forms:
                    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
                    async with session.post(path, data=form, headers=kind) as answer:
                        assert answer.status == 400, (path, form)
            for body in (b"{}", b"[", b'{"model":1}', b'{"model":"demo","n":11}', b"\xff"):
                async with session.post("/v1/images/generations", data=body) as answer:
                    assert answer.status == 400, body
    assert engine.seen == []
