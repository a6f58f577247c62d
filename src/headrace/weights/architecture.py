"""The architecture spec under its older address; `headrace.kernels.architecture` has the fields."""

from headrace.kernels.architecture import (
    Activation,
    ArchitectureSpec,
    LayerSpec,
    NormPlacement,
    QueryKeyNorm,
    RopeScaling,
    RopeStyle,
)

__all__ = [
    "Activation",
    "ArchitectureSpec",
    "LayerSpec",
    "NormPlacement",
    "QueryKeyNorm",
    "RopeScaling",
    "RopeStyle",
]
