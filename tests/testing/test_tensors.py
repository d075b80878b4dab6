# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of tests become tensors of models, and the other way round, for all fourteen datatypes."""

import builtins

import ml_dtypes
import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.testing.tensors import contents_of, read_tensor, to_array, to_input, to_tensor
from pyruntime.utils.dtypes import DATATYPES

ARRAYS = {
    **{each.name: np.array([[0, 1], [1, 0]], each.numpy) for each in DATATYPES if each.size and each.numpy},
    "BYTES": np.array([[b"", b"any"], [b"\x00bytes", "straße".encode()]], np.object_),
    "BF16": np.array([[1.5, -0.0], [3e38, np.inf]], ml_dtypes.bfloat16),
}


def spec(datatype):
    """A model's input of a datatype."""
    return TensorSpec("X", datatype, (-1,), (-1,))


@pytest.mark.parametrize("datatype", ARRAYS)
def test_there_and_back(datatype):
    """An array that is sent as input and read as output keeps its dtype, shape and values."""
    array = ARRAYS[datatype]
    sent = to_input("X", array, None)
    assert (sent.name, sent.datatype, sent.shape) == ("X", datatype, [2, 2])
    tensor = read_tensor("X", datatype, [2, 2], sent.data)
    for contents in (sent.data, contents_of(tensor), contents_of(to_tensor("X", array))):
        found = to_array(datatype, [2, 2], contents)
        assert found.dtype == array.dtype
        assert found.tolist() == array.tolist()
        assert found.flags.writeable
    if datatype != "BF16":
        assert tensor.as_numpy().tolist() == array.tolist()


@pytest.mark.parametrize("datatype", ARRAYS)
def test_nothing(datatype):
    """Tensors without elements keep their datatype and their shape."""
    sent = to_input("X", ARRAYS[datatype][:0], None)
    assert (sent.datatype, sent.shape, len(sent.data)) == (datatype, [0, 2], 0)
    assert to_array(datatype, [0, 2], sent.data).shape == (0, 2)


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        ([1, 2], "FP32", [1.0, 2.0]),
        ((1, 0), "BOOL", [True, False]),
        ([[1], [2]], "INT8", [[1], [2]]),
        (["a", b"b"], "BYTES", [b"a", b"b"]),
        (3, "UINT64", 3),
        ("text", "BYTES", b"text"),
    ],
)
def test_lists_get_the_datatype_of_the_input(value, datatype, expected):
    """A list, which has no datatype of its own, gets the datatype of the model's input."""
    sent = to_input("X", value, spec(datatype))
    assert sent.datatype == datatype
    assert to_array(datatype, sent.shape, sent.data).tolist() == expected


@pytest.mark.parametrize(
    ("value", "datatype"),
    [([1, 2], "INT64"), (np.array(["a", "b"]), "BYTES"), (np.float32(1), "FP32"), (np.zeros(2, ">i4"), "INT32")],
)
def test_arrays_keep_their_own(value, datatype):
    """Arrays keep their datatype, and so do lists for inputs that the model does not have."""
    assert to_input("X", value, spec("FP32") if isinstance(value, np.ndarray) else None).datatype == datatype


def test_tensors():
    """A tensor that is made as a model makes it is sent under the name that it is given for."""
    tensor = pb_utils.Tensor.from_dlpack("Y", np.arange(3))
    sent = to_input("X", tensor, spec("FP32"))
    assert (sent.name, sent.datatype, sent.shape) == ("X", "INT64", [3])


@pytest.mark.parametrize(
    ("value", "datatype", "message"),
    [
        ([1.5], "BF16", "BF16 is given as an array of ml_dtypes.bfloat16"),
        ([300], "UINT8", "300"),
        (["x"], "FP32", "could not convert string to float"),
        ([[1], [1, 2]], "INT8", "inhomogeneous"),
        (np.array([1j]), "FP32", "NumPy dtype is not supported"),
    ],
)
def test_what_is_none(value, datatype, message):
    """A value that cannot be converted to the input's datatype is a TypeError that names the input."""
    with pytest.raises(TypeError, match=f"input 'X' is no tensor: .*{message}"):
        to_input("X", value, spec(datatype))


def test_bf16_without_ml_dtypes(monkeypatch):
    """Where ml_dtypes is not installed BF16 comes as float32, exactly."""
    array = ARRAYS["BF16"]
    real = builtins.__import__

    def without(name, *rest):
        if name == "ml_dtypes":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    found = to_array("BF16", [2, 2], array.tobytes())
    assert found.dtype == np.float32
    assert found.tolist() == array.astype(np.float32).tolist()
