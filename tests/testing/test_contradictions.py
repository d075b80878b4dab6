# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Outputs that contradict the configuration: the server sends them, and a test warns of them."""

import warnings

import pytest

from pyruntime.testing import ContradictionWarning

# Two integers for each row.
CONFIG = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 2 ] } ]
"""
OUTPUT = 'name: "OUT" data_type: TYPE_INT64 dims: [ 2 ]'
AS = "return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', {})]) for _ in requests]"


@pytest.mark.parametrize(
    ("array", "found"),
    [
        ("np.zeros((1, 2), np.float32)", "datatype FP32, and the configuration says INT64"),
        ("np.zeros((1, 3), np.int64)", "shape [1, 3], and the configuration says [-1, 2]"),
        ("np.zeros(2, np.int64)", "shape [2], and the configuration says [-1, 2]"),
    ],
)
def test_contradiction(execute, array, found):
    """The test gets the output, and a warning about its own line."""
    model = execute(AS.format(array), CONFIG)
    with pytest.warns(ContradictionWarning) as caught:
        result = model.infer({"IN": [[1, 2]]})
    assert [str(each.message) for each in caught] == [f"output 'OUT' of model 'm' has {found}"]
    assert caught[0].filename == __file__
    assert "OUT" in result


def test_an_output_that_is_not_declared(execute):
    """The test gets the other outputs, as a client does, and a warning for each response."""
    outputs = "[pb_utils.Tensor(name, np.zeros((1, 2), np.int64)) for name in ('EXTRA', 'OUT')]"
    model = execute(f"return [pb_utils.InferenceResponse({outputs})]", CONFIG)
    said = "output 'EXTRA' of model 'm' is dropped, because the configuration declares 'OUT'"
    for _ in range(2):
        with pytest.warns(ContradictionWarning) as caught:
            assert list(model.infer({"IN": [[1, 2]]}).outputs) == ["OUT"]
        assert [str(each.message) for each in caught] == [said]


def test_as_an_error(execute):
    """A project that wants it has its tests fail."""
    model = execute(AS.format("np.zeros((1, 2), np.int32)"), CONFIG)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ContradictionWarning)
        with pytest.raises(ContradictionWarning, match="datatype INT32"):
            model.infer({"IN": [[1, 2]]})


@pytest.mark.parametrize("array", ["np.zeros((1, 2), np.int64)", "np.zeros((3, 2), np.int64)"])
def test_no_contradiction(execute, array):
    """Any number of rows fits the configuration."""
    assert "OUT" in execute(AS.format(array), CONFIG).infer({"IN": [[1, 2]]})


def test_reshape(execute):
    """What counts is the shape that a client gets."""
    reshaped = CONFIG.replace(OUTPUT, OUTPUT + " reshape { shape: [ 1, 2 ] }")
    result = execute(AS.format("np.zeros((1, 1, 2), np.int64)"), reshaped).infer({"IN": [[1, 2]]})
    assert result["OUT"].shape == (1, 2)
