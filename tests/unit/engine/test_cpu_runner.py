"""The compiled model runner on small random models, against the float NumPy forward pass.

Tolerances: only keys and values are rounded to half, and activations that meet quantized weights to
16 bits, so logits agree to 1e-2 of their standard deviation. Answers must not depend on the batch,
on chunking or on threads at all: those tests compare bits.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.kernels import has_fours
from headrace.kernels.reference.sampler import sample
from headrace.kernels.reference.transformer import forward
from headrace.sim.small_model import (
    SmallModel,
    Work,
    base_spec,
    blocks_of,
    runner_of,
    small_model,
    step,
    tokens_of,
)
from headrace.weights.architecture import RopeStyle
from headrace.weights.tensor import Tensor, TensorType

Floats = NDArray[np.float32]


def assert_close(found: Floats, expected: Floats, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, atol=tolerance * float(expected.std()))


specs = {
    "plain": base_spec,
    "halves": replace(base_spec, rope_style=RopeStyle.HALVES),
    "partly rotated": replace(base_spec, rope_dimensions=16),
    "scaled positions": replace(base_spec, rope_scale=4.0),
    "untied": replace(base_spec, tied_output=False),
    "head 64": replace(base_spec, head_dim=64, rope_dimensions=64),
    "head 128, one kv head": replace(
        base_spec, head_dim=128, rope_dimensions=128, num_kv_heads=1, num_layers=1
    ),
    "no groups": replace(base_spec, num_kv_heads=4),
    "9 heads over 3": replace(
        base_spec, hidden_size=576, num_heads=9, num_kv_heads=3, head_dim=64, rope_dimensions=64
    ),
    "head 16, odd vocabulary": replace(
        base_spec, head_dim=16, rope_dimensions=16, num_kv_heads=4, vocab_size=77
    ),
}


@pytest.mark.parametrize("name", list(specs))
@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_logits_are_those_of_the_reference(isa: str, name: str, type_name: str) -> None:
    model = small_model(specs[name], type_name)
    tokens = tokens_of(37, vocab_size=model.spec.vocab_size)
    with runner_of(model) as runner:
        result, logits = runner.execute_logits(step([Work(tokens, 0, blocks_of(3))]))
    expected = forward(model.spec, model.values, tokens)[-1]
    assert_close(logits[0], expected, 1e-2)
    reference = sample(logits[0], temperature=0.0)
    assert result.token_ids[0] == reference.token_id
    assert result.logprobs[0] == pytest.approx(reference.logprob, abs=1e-4)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("name", ["plain", "9 heads over 3", "head 16, odd vocabulary"])
def test_quantized_logits_are_near_the_reference(isa: str, name: str, type_name: str) -> None:
    model = small_model(specs[name], type_name)
    tokens = tokens_of(20, vocab_size=model.spec.vocab_size)
    with runner_of(model) as runner:
        _, logits = runner.execute_logits(step([Work(tokens, 0, blocks_of(2))]))
    expected = forward(model.spec, model.values, tokens)[-1]
    assert_close(logits[0], expected, 1e-2)


@pytest.mark.parametrize("head_dim", [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256])
@pytest.mark.parametrize(("kind", "tolerance"), [("f16", 1e-2), ("q8", 0.2)])
def test_heads_of_every_width_are_right_in_every_kind_of_kv(
    isa: str, head_dim: int, kind: Literal["f16", "q8"], tolerance: float
) -> None:
    spec = replace(base_spec, head_dim=head_dim, rope_dimensions=head_dim, num_layers=1)
    model = small_model(spec)
    tokens = tokens_of(40, vocab_size=spec.vocab_size)
    with runner_of(model, kv_cache_dtype=kind) as runner:
        runner.execute(step([Work(tokens[:39], 0, blocks_of(3))]))
        _, logits = runner.execute_logits(step([Work(tokens[39:], 39, blocks_of(3))]))
    assert_close(logits[0], forward(spec, model.values, tokens)[-1], tolerance)


def test_contexts_past_a_split_are_right(isa: str) -> None:
    model = small_model()
    tokens = tokens_of(600)
    with runner_of(model) as runner:
        blocks = blocks_of(38)
        runner.execute(step([Work(tokens[:400], 0, blocks)]))
        _, logits = runner.execute_logits(step([Work(tokens[400:], 400, blocks)]))
        _, again = runner.execute_logits(step([Work(tokens[-1:], 599, blocks)]))
    assert_close(logits[0], forward(model.spec, model.values, tokens)[-1], 1e-2)
    assert (again.view(np.uint32) == logits.view(np.uint32)).all()


def test_a_bias_is_added(isa: str) -> None:
    model = small_model()
    bias = np.linspace(-1, 1, 128).astype(np.float32)
    name = "blk.0.attn_q.bias"
    biased = replace(
        model,
        tensors=model.tensors | {name: Tensor(name, TensorType.F32, (128,), bias.view(np.uint8))},
    )
    work = step([Work(tokens_of(9), 0, [0])])
    with runner_of(model) as plain, runner_of(biased) as runner:
        _, expected = plain.execute_logits(work)
        _, found = runner.execute_logits(work)
    assert not np.allclose(found, expected, atol=1e-3)


def test_of_experts_that_are_alike_the_first_are_taken() -> None:
    spec = replace(base_spec, expert_count=4, experts_used=2, expert_ffn_size=96)
    model = small_model(spec)
    tensors, values = dict(model.tensors), dict(model.values)
    for layer in range(spec.num_layers):
        name = f"blk.{layer}.ffn_gate_inp.weight"
        values[name] = np.zeros_like(values[name])
        tensors[name] = replace(tensors[name], source=values[name].view(np.uint8).reshape(-1))
    tokens = tokens_of(9)
    expected = forward(spec, values, tokens)[-1]
    with runner_of(SmallModel(spec, tensors, values)) as runner:
        _, logits = runner.execute_logits(step([Work(tokens, 0, [0])]))
    assert_close(logits[0], expected, 1e-2)
    swapped = {
        name.replace("_up.0.", "_up.3."): tensor
        for name, tensor in values.items()
        if "_up.3." not in name
    } | {name: values[name.replace("_up.0.", "_up.3.")] for name in values if "_up.0." in name}
    other = forward(spec, swapped, tokens)[-1]
    assert np.abs(other - expected).max() > 0.1 * expected.std(), "it matters which are taken"


def test_frequency_divisors_of_the_file_are_used() -> None:
    model = small_model(specs["scaled positions"])
    divisors = np.full(16, 4.0, np.float32)
    name = "rope_freqs.weight"
    divided = replace(
        small_model(),
        tensors=model.tensors
        | {name: Tensor(name, TensorType.F32, (16,), divisors.view(np.uint8))},
    )
    work = step([Work(tokens_of(40), 0, blocks_of(3))])
    with runner_of(model) as scaled, runner_of(divided) as runner:
        _, expected = scaled.execute_logits(work)
        _, found = runner.execute_logits(work)
    assert_close(found, expected, 1e-4)


@pytest.mark.parametrize("type_name", ["F32", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_answers_do_not_depend_on_batch_chunks_or_threads(
    isa: str, type_name: str, threads: int
) -> None:
    model = small_model(specs["9 heads over 3"], type_name)
    prompts = [tokens_of(count, seed=count) for count in (1, 5, 33, 300, 17)]
    tables = [blocks_of(128, seed=3)[i * 20 : i * 20 + 20] for i in range(5)]
    with runner_of(model, threads=2) as runner:
        alone = [
            runner.execute_logits(step([Work(prompt, 0, table)]))[1][0]
            for prompt, table in zip(prompts, tables, strict=True)
        ]
    with runner_of(model, threads=threads) as runner:
        for size in (64, 13):
            for prompt, table in zip(prompts, tables, strict=True):
                for start in range(0, len(prompt) - 1, size):
                    chunk = prompt[start : min(start + size, len(prompt) - 1)]
                    runner.execute(step([Work(chunk, start, table)]))
            last = [
                Work(prompt[-1:], len(prompt) - 1, table)
                for prompt, table in zip(prompts, tables, strict=True)
            ]
            _, together = runner.execute_logits(step(last))
            assert (together.view(np.uint32) == np.stack(alone).view(np.uint32)).all()


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("threads", [1, 3])
def test_answers_of_8_bit_activations_do_not_depend_on_batch_chunks_or_threads(
    isa: str, type_name: str, threads: int
) -> None:
    model = small_model(specs["9 heads over 3"], type_name)
    prompts = [tokens_of(count, seed=count) for count in (1, 5, 33, 300, 17)]
    tables = [blocks_of(128, seed=3)[i * 20 : i * 20 + 20] for i in range(5)]
    pairs = list(zip(prompts, tables, strict=True))
    with runner_of(model, threads=2, activation_bits=8) as runner:
        works = [step([Work(prompt, 0, table)]) for prompt, table in pairs]
        alone = [runner.execute_logits(work)[1][0] for work in works]
    with runner_of(model, threads=threads, activation_bits=8) as runner:
        for prompt, table in pairs:
            for start in range(0, len(prompt) - 1, 13):
                chunk = prompt[start : min(start + 13, len(prompt) - 1)]
                runner.execute(step([Work(chunk, start, table)]))
        last = [Work(prompt[-1:], len(prompt) - 1, table) for prompt, table in pairs]
        _, together = runner.execute_logits(step(last))
    assert (together.view(np.uint32) == np.stack(alone).view(np.uint32)).all()


@pytest.mark.parametrize(
    ("type_name", "bits"), [("Q4_0", 8), ("Q4_1", 8), ("Q8_0", 0), ("F16", 16)]
)
def test_8_bit_activations_are_those_of_quantized_weights_alone(
    isa: str, type_name: str, bits: int
) -> None:
    """0: where the instruction set gains by them."""
    bits = bits or (8 if has_fours(8) else 16)
    model = small_model(type_name=type_name)
    tokens = tokens_of(40)
    work = step([Work(tokens, 0, blocks_of(3))])
    with runner_of(model) as exact, runner_of(model, activation_bits=8) as runner:
        assert (exact.info.activation_bits, runner.info.activation_bits) == (16, bits)
        _, expected = exact.execute_logits(work)
        _, found = runner.execute_logits(work)
    assert (found == expected).all() == (bits == 16)
    assert_close(found, expected, 0.2)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0"])
def test_kv_of_8_bit_activations_is_not_taken_for_that_of_16(
    type_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CPU_ISA", "portable")
    model = small_model(type_name=type_name)
    with runner_of(model) as exact, runner_of(model, activation_bits=8) as runner:
        for runner_from, runner_to in ((exact, runner), (runner, exact)):
            with pytest.raises(ValueError, match="layout"):
                runner_to.import_blocks([0], runner_from.export_blocks([0]))
        runner.import_blocks([0], runner.export_blocks([1]))


def test_int8_keys_and_values_do_not_depend_on_chunks_and_take_half_the_room(isa: str) -> None:
    model = small_model(specs["head 64"], "Q8_0")
    tokens = tokens_of(300)
    blocks = blocks_of(19)
    with runner_of(model, kv_cache_dtype="q8") as runner, runner_of(model) as half:
        _, whole = runner.execute_logits(step([Work(tokens, 0, blocks)]))
        stored = runner.export_blocks(blocks[:18])
        for start, end in ((0, 7), (7, 150), (150, 299)):
            runner.execute(step([Work(tokens[start:end], start, blocks)]))
        _, pieces = runner.execute_logits(step([Work(tokens[299:], 299, blocks)]))
        assert (pieces.view(np.uint32) == whole.view(np.uint32)).all()
        assert runner.export_blocks(blocks[:18]) == stored
        assert_close(whole[0], half.execute_logits(step([Work(tokens, 0, blocks)]))[1][0], 0.2)
        assert runner.kv_bytes < 0.57 * half.kv_bytes
        with pytest.raises(ValueError, match="layout"):
            half.import_blocks(blocks[:18], stored)


def test_blocks_move_by_copy_and_by_bytes() -> None:
    model = small_model()
    tokens = tokens_of(30)
    with runner_of(model) as runner, runner_of(model) as other:
        runner.execute(step([Work(tokens[:-1], 0, [4, 7])]))
        _, expected = runner.execute_logits(step([Work(tokens[-1:], 29, [4, 7])]))
        runner.copy_blocks([(4, 11), (7, 12)])
        _, copied = runner.execute_logits(step([Work(tokens[-1:], 29, [11, 12])]))
        other.import_blocks([0, 1], runner.export_blocks([4, 7]))
        _, imported = other.execute_logits(step([Work(tokens[-1:], 29, [0, 1])]))
    assert (copied == expected).all()
    assert (imported == expected).all()
