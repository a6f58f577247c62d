"""Whatever happens to a file's bytes: it is read, or refused by one kind of error."""

import struct
from contextlib import suppress
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import ModelFileError
from headrace.weights.architecture_reader import read_architecture
from headrace.weights.gguf import open_gguf


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small model that passes every check, by the independent writer."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_types([1, 1, 3])
    writer.add_add_bos_token(False)
    shapes = {"token_embd": (3, 32), "output_norm": (32,), "blk.0.attn_norm": (32,)}
    shapes |= {"blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32)}
    shapes |= {"blk.0.attn_output": (32, 32), "blk.0.ffn_norm": (32,)}
    shapes |= {f"blk.0.ffn_{name}": (32, 32) for name in ("gate", "up", "down")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as file:
        assert read_architecture(file).num_layers == 1
    return path.read_bytes()


header_bytes = 1800  # what comes before the data section, and a little more
interesting = st.sampled_from(
    [
        *(0, 1, 2, 3, 7, 8, 9, 13, 31, 32, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1),
        *(2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1),
    ]
)
mutation = st.one_of(
    st.tuples(st.just("byte"), st.integers(0, header_bytes), st.integers(0, 255)),
    st.tuples(st.just("u32"), st.integers(0, header_bytes), interesting),
    st.tuples(st.just("u64"), st.integers(0, header_bytes), interesting),
    st.tuples(st.just("cut"), st.integers(0, header_bytes), st.integers(1, 64)),
    st.tuples(st.just("insert"), st.integers(0, header_bytes), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("truncate"), st.integers(0, 30_000), st.just(0)),
)


def mutate(data: bytes, kind: str, place: int, value: int) -> bytes:
    match kind:
        case "byte":
            return data[:place] + bytes([value]) + data[place + 1 :]
        case "u32":
            return data[:place] + struct.pack("<I", value % 2**32) + data[place + 4 :]
        case "u64":
            return data[:place] + struct.pack("<Q", value) + data[place + 8 :]
        case "cut":
            return data[:place] + data[place + value :]
        case "insert":
            return data[:place] + struct.pack("<I", value) + data[place:]
        case _:
            return data[:place]


@given(mutations=st.lists(mutation, min_size=1, max_size=4))
@settings(
    max_examples=1500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_changed_file_is_read_or_refused(
    valid: bytes, tmp_path: Path, mutations: list[tuple[str, int, int]]
) -> None:
    data = valid
    for kind, place, value in mutations:
        data = mutate(data, kind, place, value)
    path = tmp_path / "changed.gguf"
    path.unlink(missing_ok=True)  # an earlier example may still be mapped
    path.write_bytes(data)
    with suppress(ModelFileError), open_gguf(path) as file:
        for tensor in file.tensors.values():
            assert tensor.data.nbytes <= len(data)
        read_architecture(file)


@given(data=st.binary(max_size=200))
@settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_anything_after_the_magic_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + data)
    with suppress(ModelFileError):
        open_gguf(path)
