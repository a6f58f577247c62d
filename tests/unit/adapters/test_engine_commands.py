"""The command lines of engines that are not ours, word by word."""

import dataclasses

import pytest

from headrace.adapters.protocol import LaunchRequest
from headrace.adapters.registry import find_adapter
from headrace.base.errors import InvalidRequest
from headrace.spec.node_groups import NodeGroup

request = LaunchRequest(
    model_path="/models/a",
    served_model_name="a",
    host="10.0.0.7",
    port=4000,
    api_key="secret",
    threads=6,
    context_length=4096,
    tensor_parallel=2,
    memory_share=0.85,
    sequences_max=32,
    prefix_cache=False,
    quantization="awq",
    extra_arguments=("--extra", "1"),
)
commands = {
    "llama_cpp": (
        "llama-server -m /models/a -a a --host 10.0.0.7 --port 4000 --metrics -t 6 -c 131072 "
        "-np 32 --no-cache-prompt -sm row --extra 1",
        {"LLAMA_API_KEY": "secret"},
    ),
    "vllm": (
        "vllm serve /models/a --served-model-name a --host 10.0.0.7 --port 4000 "
        "--enable-prompt-tokens-details --max-model-len 4096 --tensor-parallel-size 2 "
        "--gpu-memory-utilization 0.85 --max-num-seqs 32 --quantization awq "
        "--no-enable-prefix-caching --extra 1",
        {"VLLM_API_KEY": "secret", "OMP_NUM_THREADS": "6"},
    ),
    "sglang": (
        "python3 -m sglang.launch_server --model-path /models/a --served-model-name a "
        "--host 10.0.0.7 --port 4000 --enable-metrics --enable-cache-report "
        "--context-length 4096 --tp-size 2 --mem-fraction-static 0.85 "
        "--max-running-requests 32 --quantization awq --disable-radix-cache --extra 1",
        {"OMP_NUM_THREADS": "6"},
    ),
    "tensorrt_llm": (
        "trtllm-serve /models/a --backend pytorch --served_model_name a --host 10.0.0.7 "
        "--port 4000 --max_seq_len 4096 --tp_size 2 --kv_cache_free_gpu_memory_fraction 0.85 "
        "--max_batch_size 32 --extra 1",
        {"OMP_NUM_THREADS": "6"},
    ),
    "tgi": (
        "text-generation-launcher --model-id /models/a --hostname 10.0.0.7 --port 4000 "
        "--max-total-tokens 4096 --max-input-tokens 4095 --num-shard 2 "
        "--cuda-memory-fraction 0.85 --max-concurrent-requests 32 --quantize awq --extra 1",
        {"API_KEY": "secret", "PREFIX_CACHING": "0", "OMP_NUM_THREADS": "6"},
    ),
    "transformers": (
        "transformers serve /models/a --host 10.0.0.7 --port 4000 --continuous-batching "
        "--quantization awq --cb-max-memory-percent 0.85 --extra 1",
        {"OMP_NUM_THREADS": "6"},
    ),
    "ollama": (
        "ollama serve --extra 1",
        {
            "OLLAMA_HOST": "10.0.0.7:4000",
            "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_MAX_LOADED_MODELS": "1",
            "OLLAMA_CONTEXT_LENGTH": "4096",
            "OLLAMA_NUM_PARALLEL": "32",
        },
    ),
    "triton": (
        "python3 /opt/tritonserver/python/openai/openai_frontend/main.py --model-repository "
        "/models/a --host 10.0.0.7 --openai-port 4000 --extra 1",
        {"OMP_NUM_THREADS": "6"},
    ),
}


group = NodeGroup(node_count=2, port=8002)
several = dataclasses.replace(request, tensor_parallel=16, group=group, extra_arguments=("--x",))


def test_nodes_of_one_vllm_find_the_first_and_only_that_one_serves() -> None:
    command = find_adapter("vllm").command(several)
    words = " ".join(command.argv)
    assert "--tensor-parallel-size 16" in words
    assert (
        "--nnodes 2 --node-rank $(LWS_WORKER_INDEX) "
        "--master-addr $(LWS_LEADER_ADDRESS) --master-port 8002" in words
    )
    assert command.worker_argv == (*command.argv[:-1], "--headless", "--x")


def test_nodes_of_one_sglang_find_the_first() -> None:
    command = find_adapter("sglang").command(several)
    words = " ".join(command.argv)
    assert "--tp-size 16" in words
    assert (
        "--nnodes 2 --node-rank $(LWS_WORKER_INDEX) "
        "--dist-init-addr $(LWS_LEADER_ADDRESS):8002" in words
    )
    assert command.worker_argv == ()


def test_headraces_engine_refuses_a_second_node() -> None:
    with pytest.raises(InvalidRequest, match="runs on one node"):
        find_adapter("headrace").command(dataclasses.replace(several, extra_arguments=()))


@pytest.mark.parametrize("engine", commands)
def test_its_command_is_as_documented(engine: str) -> None:
    command = find_adapter(engine).command(request)

    assert (" ".join(command.argv), command.environment) == commands[engine]
    assert not command.watches_lifeline


@pytest.mark.parametrize(
    ("engine", "argument"),
    [
        ("llama_cpp", "--api-key"),
        ("llama_cpp", "-c"),
        ("llama_cpp", "--host=0.0.0.0"),
        ("vllm", "--api-key=x"),
        ("vllm", "--served-model-name"),
        ("sglang", "--host"),
        ("tensorrt_llm", "--port"),
        ("tgi", "--api-key"),
        ("transformers", "--force-model=b"),
        ("triton", "--openai-port"),
    ],
)
def test_an_operator_cannot_take_an_engine_from_the_platform(engine: str, argument: str) -> None:
    with pytest.raises(InvalidRequest, match=argument.partition("=")[0]):
        find_adapter(engine).command(
            LaunchRequest("/m", "a", "127.0.0.1", 1, "k", extra_arguments=(argument, "1"))
        )


def test_an_engine_is_asked_for_the_name_that_it_answers_to() -> None:
    assert find_adapter("vllm").served_name("a", "/models/a") == "a"
    assert find_adapter("transformers").served_name("a", "/models/a") == "/models/a"


def test_llama_cpp_without_a_declared_context_keeps_its_own_defaults() -> None:
    bare = LaunchRequest("/m.gguf", "a", "127.0.0.1", 1, "k")
    argv = find_adapter("llama_cpp").command(bare).argv

    assert "-c" not in argv
    assert "-np" not in argv


def test_a_declared_context_is_each_slots_own() -> None:
    declared = LaunchRequest("/m.gguf", "a", "127.0.0.1", 1, "k", context_length=1024)
    argv = find_adapter("llama_cpp").command(declared).argv

    assert argv[argv.index("-c") + 1] == "4096"
    assert argv[argv.index("-np") + 1] == "4"
