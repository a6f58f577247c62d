from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import ModelFileError
from headrace.kernels import _native
from headrace.weights.reference_page import computed_types, render_page
from headrace.weights.tensor import TensorType, block_layouts

page = Path(__file__).parents[3] / "docs" / "reference" / "models.md"


def test_the_page_is_current() -> None:
    assert page.read_text() == render_page()


def read_zeros(tensor_type: TensorType) -> None:
    layout = block_layouts[tensor_type]
    row = np.empty(layout.values, np.float32)
    _native.read_row(int(tensor_type), np.zeros(layout.bytes, np.uint8), 1, 0, row)


@pytest.mark.parametrize("tensor_type", computed_types)
def test_a_type_of_the_page_is_read(tensor_type: TensorType) -> None:
    read_zeros(tensor_type)


@pytest.mark.parametrize("tensor_type", sorted(set(block_layouts) - set(computed_types)))
def test_a_type_that_the_page_leaves_out_is_refused(tensor_type: TensorType) -> None:
    with pytest.raises(ModelFileError):
        read_zeros(tensor_type)
