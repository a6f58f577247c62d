"""What a step must at least do: bytes to read and multiply-adds, from a model's shapes.

A lower bound, so that a share of the machine's rate is honest: every matrix is read once a step,
the keys and values of the context once a sequence; the embedding's few rows are left out.

    bytes of a step = matrices + sequences x context x KV bytes a token
    operations of a step = 2 x (layers' weights x rows + output's weights x sampled rows)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.weights.architecture import ArchitectureSpec
from headrace.weights.tensor import Tensor

embedding_name = "token_embd.weight"
output_name = "output.weight"
layer_prefix = "blk."


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The sizes that decide a model's cost."""

    matrix_bytes: int
    layer_weights: int  # numbers in the layers' matrices
    output_weights: int  # numbers in the matrix that makes logits
    kv_bytes_per_token: int

    def step_bytes(self, sequence_count: int, context_tokens: int) -> int:
        """Bytes that a step of decoding has to read."""
        return self.matrix_bytes + sequence_count * context_tokens * self.kv_bytes_per_token

    def operations(self, row_count: int, sampled_count: int) -> int:
        """Integer operations of the matrices, two a multiply-add."""
        return 2 * (self.layer_weights * row_count + self.output_weights * sampled_count)


def model_work(
    spec: ArchitectureSpec, tensors: Mapping[str, Tensor], *, kv_bytes_per_token: int
) -> ModelWork:
    """The work of the model in a file, on a runner that keeps so many bytes a token."""
    output = tensors[embedding_name if spec.tied_output else output_name]
    layers = [
        tensor
        for name, tensor in tensors.items()
        if name.startswith(layer_prefix) and len(tensor.shape) == 2
    ]
    return ModelWork(
        matrix_bytes=sum(tensor.byte_count for tensor in [*layers, output]),
        layer_weights=sum(tensor.value_count for tensor in layers),
        output_weights=output.value_count,
        kv_bytes_per_token=kv_bytes_per_token,
    )
