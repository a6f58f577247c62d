"""Hugging Face Transformers over a GGUF file's weights as float32, as a library to compare with.

Static batches: as many prompts as there are clients are generated together, and the next ones start
when all of a batch have ended. Run by a Python that has `torch` and `transformers`, by
`engine_vs_peers.py` (see `questions.py`):

    PYTHONPATH=bench python bench/peers/transformers_generate.py MODEL.gguf --threads 2
"""

import argparse
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from peers.questions import Answer, Run, serve

torch: Any = import_module("torch")  # these two of the peer's environment alone
transformers: Any = import_module("transformers")


class Clock:
    """A streamer's place in `generate`: notes when each step's tokens are there."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """A logits processor that changes nothing."""
        self.times_s.append(time.perf_counter())
        return scores


def loaded(model: str, threads: int) -> Run:
    """The model as float32, and what runs a question through it batch by batch."""
    torch.set_num_threads(threads)
    path = Path(model).absolute()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    network = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()

    def run(prompts: list[str], concurrency: int, output_tokens: int) -> list[Answer]:
        answers: list[Answer] = []
        for first in range(0, len(prompts), concurrency):
            batch = prompts[first : first + concurrency]
            start_s = time.perf_counter()
            inputs = tokenizer(batch, return_tensors="pt", padding=True)
            clock = Clock()
            with torch.inference_mode():
                network.generate(
                    **inputs,
                    do_sample=False,
                    min_new_tokens=output_tokens,
                    max_new_tokens=output_tokens,
                    logits_processor=[clock],
                )
            end_s = time.perf_counter()
            answers += [
                Answer(start_s, clock.times_s[0], end_s, output_tokens) for _ in range(len(batch))
            ]
        return answers

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    serve(lambda: loaded(arguments.model, arguments.threads))
