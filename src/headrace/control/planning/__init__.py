"""How much memory a model needs, and on how many devices it fits; pure arithmetic.

Reading order: `model_shape` (what is counted), `known_shapes` and `config_shape` (where shapes come
from), `precision`, `device`, `sizes` (bytes), `layouts` (devices). Used by `headrace plan`.
"""
