# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Two inputs, their sum and their difference."""

import numpy as np
import pytest

from pyruntime.testing import InferenceError


def test_sum_and_difference(load_model):
    """Both outputs, of arrays or of lists."""
    model = load_model("model_repository/add_sub")
    a, b = np.arange(16, dtype=np.float32), np.ones(16, dtype=np.float32)
    result = model.infer({"INPUT0": a, "INPUT1": b})
    np.testing.assert_array_equal(result["OUTPUT0"], a + b)
    np.testing.assert_array_equal(result["OUTPUT1"], a - b)
    assert model.infer({"INPUT0": [1] * 16, "INPUT1": [2] * 16})["OUTPUT0"].tolist() == [3] * 16


def test_one_output(load_model):
    """Only the requested output is returned."""
    result = load_model("model_repository/add_sub").infer(
        {"INPUT0": [1] * 16, "INPUT1": [2] * 16}, requested_outputs=["OUTPUT1"]
    )
    assert list(result.outputs) == ["OUTPUT1"]


def test_wrong_shape(load_model):
    """A request that the configuration does not allow does not reach the model."""
    with pytest.raises(InferenceError, match="unexpected shape for input 'INPUT0' for model 'add_sub'"):
        load_model("model_repository/add_sub").infer({"INPUT0": [1] * 15, "INPUT1": [2] * 16})
