"""What a model's file says of the model: its family, size and the type of its weights."""

from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path

from headrace.weights.model_file import open_model

unknown = "unknown"
parameter_units = ((10**9, "B"), (10**6, "M"))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model file, as lists of models tell of it."""

    family: str
    file_format: str
    parameter_count: int  # 0 if unknown
    quantization: str  # the type that most of the weights' bytes have
    size_bytes: int
    digest: str = ""  # not known here

    @property
    def parameter_size(self) -> str:
        """The parameters as people say them."""
        for unit, letter in parameter_units:
            if self.parameter_count >= unit:
                return f"{self.parameter_count / unit:.4g}{letter}"
        return str(self.parameter_count)

    def ollama_details(self) -> dict[str, object]:
        """The same by the names of Ollama's API."""
        return {
            "parent_model": "",
            "format": self.file_format,
            "family": self.family,
            "families": [self.family],
            "parameter_size": self.parameter_size,
            "quantization_level": self.quantization,
        }


def read_facts(path: Path) -> ModelFacts:
    """The facts of a model file. Cost: its header is read, no weights."""
    if path.is_dir():
        size_bytes = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        return ModelFacts(unknown, "safetensors", 0, unknown, size_bytes)
    with open_model(path) as file:
        family = file.metadata.get("general.architecture")
        by_type: Counter[str] = Counter()
        parameters = 0
        for tensor in file.tensors.values():
            by_type[tensor.type.name] += tensor.byte_count
            parameters += prod(tensor.shape)
    quantization = by_type.most_common(1)[0][0] if by_type else unknown
    return ModelFacts(
        family if isinstance(family, str) else unknown,
        "gguf",
        parameters,
        quantization,
        path.stat().st_size,
    )
