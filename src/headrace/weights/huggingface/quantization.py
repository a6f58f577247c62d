"""Which quantization a config.json declares, and the stored tensors as weights under it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from headrace.base.errors import ModelFileError
from headrace.weights.huggingface.integer_schemes import integer_scheme
from headrace.weights.huggingface.mxfp4_experts import Mxfp4Scheme
from headrace.weights.huggingface.safetensors_file import StoredTensor, plain_tensor
from headrace.weights.huggingface.scaled_schemes import ScaledScheme
from headrace.weights.huggingface.unpacked import Unpacked
from headrace.weights.tensor import Tensor

methods = ("gptq", "awq", "fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4")


class Scheme(Protocol):
    """Turns the parts of quantized weights into weights."""

    def unpack(self, stored: Mapping[str, StoredTensor]) -> tuple[Unpacked, set[str]]:
        """The weights, and the names of the tensors that they were made of."""
        ...


def weights_of(
    stored: Mapping[str, StoredTensor], config: Mapping[str, object], path: Path
) -> tuple[dict[str, Tensor], list[str]]:
    """Every weight under Hugging Face's name, and a line on how quantized ones are kept.

    ModelFileError names the tensor or the setting that is not understood. Cost: scales and zeros
    are read; codes are when a weight's data is."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if settings is None:
        return {name: plain_tensor(tensor) for name, tensor in stored.items()}, []
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if not isinstance(settings, dict) or method not in methods:
        raise ModelFileError(
            f"{path}: quantization_config: {method!r} is not supported; headrace reads "
            f"{', '.join(methods)}, and GGUF files.",
            file=str(path),
            field="quantization_config",
        )
    if settings.get("transform_config"):
        raise ModelFileError(
            f"{path}: quantization_config: transform_config: weights that meet turned activations "
            "are not supported; use another file of the model.",
            file=str(path),
            field="transform_config",
        )
    unpacked, used = _scheme(path, str(method), settings).unpack(stored)
    plain = {name: plain_tensor(tensor) for name, tensor in stored.items() if name not in used}
    return plain | unpacked.tensors, [unpacked.note(str(method))]


def _scheme(path: Path, method: str, settings: Mapping[str, object]) -> Scheme:
    match method:
        case "gptq" | "awq":
            return integer_scheme(settings)
        case "mxfp4":
            return Mxfp4Scheme()
        case _:
            block = settings.get("weight_block_size")
            if block is None:
                return ScaledScheme()
            if isinstance(block, list) and len(block) == 2 and all(_is_size(n) for n in block):
                return ScaledScheme((block[0], block[1]))
            raise ModelFileError(
                f"{path}: quantization_config: weight_block_size: {block!r} is not the rows and "
                "columns that share a scale, such as [128, 128].",
                file=str(path),
                field="weight_block_size",
            )


def _is_size(number: object) -> bool:
    return type(number) is int and number > 0
