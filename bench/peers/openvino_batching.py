"""OpenVINO GenAI's continuous batching over a GGUF file, as a library to compare with.

Run by a Python that has `openvino-genai`, by `engine_vs_peers.py` (see `questions.py`):

    PYTHONPATH=bench python bench/peers/openvino_batching.py MODEL.gguf --threads 2
"""

import argparse
import time
from importlib import import_module
from typing import Any

from peers.questions import Answer, Run, serve

openvino_genai: Any = import_module("openvino_genai")  # of the peer's environment alone


def loaded(model: str, threads: int) -> Run:
    """The model on the CPU, and what runs a question through it with so many at a time."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = 256
    scheduler.cache_size = 4  # GB, far more than the questions need
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
    )
    next_id = 0

    def run(prompts: list[str], concurrency: int, output_tokens: int) -> list[Answer]:
        nonlocal next_id
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
        waiting = list(reversed(prompts))
        running: list[tuple[Answer, Any]] = []
        done: list[Answer] = []
        while waiting or running:
            while waiting and len(running) < concurrency:
                now = time.perf_counter()
                handle = pipeline.add_request(next_id, waiting.pop(), config)
                next_id += 1
                running.append((Answer(now, 0.0, 0.0, 0), handle))
            pipeline.step()
            now = time.perf_counter()
            for answer, handle in running:
                while handle.can_read():
                    count = sum(len(part.generated_ids) for part in handle.read().values())
                    answer.first_s = answer.first_s or now
                    answer.last_s = now
                    answer.tokens += count
            done += [answer for answer, _ in running if answer.tokens >= output_tokens]
            running = [pair for pair in running if pair[0].tokens < output_tokens]
        return done

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    serve(lambda: loaded(arguments.model, arguments.threads))
