"""What a platform survives: a replica and a control plane killed under load, one that hangs."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import psutil
import pytest
from openai.types.chat import ChatCompletionMessageParam

from headrace.sim.booked import Booked, read_settlements
from headrace.sim.child_process import until, wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.storage import open_sqlite

pytestmark = pytest.mark.e2e

model = "smollm2-135m-instruct"
clients = 6
requests_each = 8
output_tokens = 24
replicas = 3


@dataclass
class Load:
    """What a bounded number of requests met, half of them streamed."""

    done: int = 0
    cut: int = 0  # broken after their first byte
    failed: int = 0  # before it

    @property
    def ended(self) -> int:
        return self.done + self.cut + self.failed


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    directory = tmp_path_factory.mktemp("up")
    with PlatformProcess.start(directory, "--demo", "--replicas", str(replicas)) as started:
        started.wait_active(replicas)
        yield started


def question(number: int) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": f"Tell me a story about the number {number}."}]


async def ask(client: openai.AsyncOpenAI, number: int, load: Load) -> None:
    """One unstreamed request; it has no byte until it has all."""
    try:
        await client.chat.completions.create(
            model=model, messages=question(number), max_tokens=output_tokens
        )
        load.done += 1
    except openai.APIError:
        load.failed += 1


async def stream(client: openai.AsyncOpenAI, number: int, load: Load) -> None:
    """One streamed request, counted by how it ended."""
    began = False
    try:
        chunks = await client.chat.completions.create(
            model=model, messages=question(number), max_tokens=output_tokens, stream=True
        )
        began = True
        finish = None
        async for chunk in chunks:
            finish = chunk.choices[0].finish_reason or finish
        if finish is None:
            load.cut += 1
        else:
            load.done += 1
    except openai.APIError:
        if began:
            load.cut += 1
        else:
            load.failed += 1


async def run_load(platform: PlatformProcess, load: Load) -> None:
    """Every client's requests, one after the other."""
    async with openai.AsyncOpenAI(
        base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, max_retries=0
    ) as client:

        async def run_client(number: int) -> None:
            for round_number in range(requests_each):
                send = stream if number % 2 else ask
                await send(client, number * requests_each + round_number, load)

        await asyncio.gather(*(run_client(number) for number in range(clients)))


async def load_with_kill(platform: PlatformProcess, victim: psutil.Process) -> Load:
    """Run the load, and kill a process in its midst."""
    load = Load()
    running = asyncio.create_task(run_load(platform, load))
    await until(lambda: load.ended >= clients)
    assert load.ended == load.done
    victim.kill()
    await running
    return load


async def test_a_killed_replica_fails_no_request_without_a_byte_and_comes_back(
    platform: PlatformProcess,
) -> None:
    before = platform.launches()
    victim = before[0]
    engine = psutil.Process(victim.pid).children()[0]
    load = await load_with_kill(platform, psutil.Process(victim.pid))

    assert load.failed == 0
    assert load.cut <= clients // 2
    assert load.ended == clients * requests_each
    platform.wait_active(replicas)
    pids = {launch.pid for launch in platform.launches()}
    assert pids.issuperset(launch.pid for launch in before[1:])
    assert victim.pid not in pids
    assert len(pids) == replicas
    assert not engine.is_running()


async def test_traffic_goes_on_without_control_which_adopts_the_same_replicas(
    platform: PlatformProcess,
) -> None:
    platform.wait_active(replicas)
    before = sorted(launch.launch_id for launch in platform.launches())
    killed = platform.part("control")
    load = await load_with_kill(platform, killed)

    assert (load.done, load.cut, load.failed) == (clients * requests_each, 0, 0)
    wait_until(lambda: control_is_back(platform, killed))
    # The new one looks after them: it brings back one that is killed, and keeps the other.
    victim = platform.launches()[0]
    psutil.Process(victim.pid).kill()
    wait_until(lambda: victim.launch_id not in {each.launch_id for each in platform.launches()})
    platform.wait_active(replicas)
    after = sorted(launch.launch_id for launch in platform.launches())
    assert len(set(before) & set(after)) == replicas - 1
    assert len(after) == replicas


async def test_traffic_keys_and_metering_go_on_while_control_stands_still(
    platform: PlatformProcess,
) -> None:
    platform.wait_active(replicas)
    control = platform.part("control")
    load = Load()
    control.suspend()
    try:
        await run_load(platform, load)
        assert (load.done, load.cut, load.failed) == (clients * requests_each, 0, 0)
        async with openai.AsyncOpenAI(
            base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, max_retries=0
        ) as client:
            answer = await client.chat.completions.with_raw_response.create(
                model=model, messages=question(0), max_tokens=output_tokens
            )
            request_id = answer.headers["x-request-id"]
            await until(lambda: request_id in booked(platform))
            stranger = client.with_options(api_key=f"{platform.api_key}0")
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()
        assert platform.part("control").pid == control.pid
        assert control.status() == psutil.STATUS_STOPPED
    finally:
        control.resume()
    assert len(platform.launches()) == replicas


def booked(platform: PlatformProcess) -> dict[str, Booked]:
    """The settlements in the ledger, by request id."""
    database = open_sqlite(platform.data_dir / "headrace.db")
    try:
        return read_settlements(database)
    finally:
        database.close()


def control_is_back(platform: PlatformProcess, killed: psutil.Process) -> bool:
    try:
        return platform.part("control").pid != killed.pid
    except ValueError:
        return False
