# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Classes: their order, how they are written, their labels, and outputs that have none."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tritonclient.utils import np_to_triton_dtype

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.frontends.common.classification import ELEMENTS_MAX, classified, classify
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.byte_tensors import deserialize_bytes_tensor
from pyruntime.utils.errors import Code, InferenceError

NUMBERS = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"]


def output_of(array, name="OUT"):
    array = np.asarray(array)
    return OutputTensor(name, np_to_triton_dtype(array.dtype), list(array.shape), memoryview(array.tobytes()))


def strings(output):
    return [string.decode(errors="surrogateescape") for string in deserialize_bytes_tensor(bytes(output.data))]


def classes(values, count, labels=(), dtype=np.float32, batched=False):
    """The shape and the strings of the classes of an array."""
    found = classify(output_of(np.array(values, dtype)), count, labels, batched)
    assert (found.name, found.datatype) == ("OUT", "BYTES")
    return found.shape, strings(found)


def refusal(output, count=1):
    with pytest.raises(InferenceError) as caught:
        classify(output, count, (), False)
    return caught.value.code, caught.value.message


class TestValues:
    def test_floats(self):
        """Six digits behind the point, and as many before it as there are."""
        values = [1e10, 123456.789, 1 / 3, -0.0, -2.5e-5, 1e38]
        assert classes(values, 9)[1] == [
            "99999996802856924650656260769173209088.000000:5",
            "10000000000.000000:0",
            "123456.789062:1",
            "0.333333:2",
            "-0.000000:3",
            "-0.000025:4",
        ]
        assert classes([123456.789, 0.1234567890123], 2, dtype=np.float64)[1] == ["123456.789000:0", "0.123457:1"]

    def test_not_finite(self):
        """NaN elements come last."""
        nan, inf = math.nan, math.inf
        assert classes([1, nan, 3, inf, -inf, nan, 2], 7)[1] == [
            "inf:3", "3.000000:2", "2.000000:6", "1.000000:0", "-inf:4", "nan:1", "nan:5",
        ]  # fmt: skip
        assert classes([nan, -1, nan], 1)[1] == ["-1.000000:1"]
        assert classes([nan, nan, nan], 2)[1] == ["nan:0", "nan:1"]

    @pytest.mark.parametrize("dtype", [dtype for dtype in NUMBERS if dtype[0] != "f"])
    def test_integers(self, dtype):
        """All of them, their limits among them."""
        info = np.iinfo(dtype)
        assert classes([7, info.max, info.min], 3, dtype=dtype)[1] == [f"{info.max}:1", "7:0", f"{info.min}:2"]

    def test_equals(self):
        """Of equal values that of the smallest index comes first."""
        assert classes([3, 1, 3, 2, 3, 1], 6, dtype=np.int32)[1] == ["3:0", "3:2", "3:4", "2:3", "1:1", "1:5"]
        assert classes([1] * 100 + [2] * 100, 103)[1][99:] == ["2.000000:199", "1.000000:0", "1.000000:1", "1.000000:2"]

    @given(data=st.data(), dtype=st.sampled_from(NUMBERS), count=st.integers(1, 50))
    def test_any(self, data, dtype, count):
        """As sorted by hand."""
        values = data.draw(arrays(dtype, st.integers(0, 40)))
        numbers = [(1, 0) if math.isnan(value) else (0, -value) for value in values.tolist()]
        indexes = sorted(range(len(values)), key=lambda at: (numbers[at], at))[:count]
        form = "%f:%d" if dtype[0] == "f" else "%d:%d"
        assert classes(values, count, dtype=dtype) == ([len(indexes)], [form % (values[at], at) for at in indexes])


class TestShapes:
    def test_of_one_row(self):
        """A model that does not batch has classes of all elements together."""
        assert classes([[1, 2, 3], [6, 5, 4]], 4) == ([4], ["6.000000:3", "5.000000:4", "4.000000:5", "3.000000:2"])

    def test_of_a_batch(self):
        """One that does has those of each row."""
        shape, found = classes([[1, 2, 3], [6, 5, 4]], 2, batched=True)
        assert (shape, found) == ([2, 2], ["3.000000:2", "2.000000:1", "6.000000:0", "5.000000:1"])
        shape, found = classes([[[1, 2], [4, 3]]], 1, batched=True)
        assert (shape, found) == ([1, 1], ["4.000000:2"])

    @pytest.mark.parametrize("count", [3, 4, 2**32, 2**70])
    def test_more_than_there_are(self, count):
        """There are as many classes as elements at most."""
        assert classes([1, 2, 3], count, dtype=np.int8) == ([3], ["3:2", "2:1", "1:0"])

    def test_none(self):
        """An output without elements has no classes."""
        assert classes([], 2) == ([0], [])
        assert classes(np.zeros((2, 0)), 2, batched=True) == ([2, 0], [])
        assert classes(np.zeros((0, 3)), 2, batched=True) == ([0, 0], [])


class TestLabels:
    def test_by_index(self):
        """The label is selected by the index in the row; an empty or missing label is left out."""
        labels = ("zero", "", "two: 2", "trois\r")
        assert classes([9, 8, 7, 6, 5], 5, labels, np.int8)[1] == [
            "9:0:zero",
            "8:1",
            "7:2:two: 2",
            "6:3:trois\r",
            "5:4",
        ]
        assert classes([[1, 2], [2, 1]], 1, labels, np.int8, True)[1] == ["2:1", "2:0:zero"]

    def test_of_any_encoding(self):
        """They are sent as they stand in their file."""
        labels = (b"\xff\xfe".decode(errors="surrogateescape"), "zäh")
        output = classify(output_of(np.array([2, 1], np.int8)), 2, labels, False)
        assert list(deserialize_bytes_tensor(bytes(output.data))) == [b"2:0:\xff\xfe", "1:1:zäh".encode()]


class TestRefusals:
    @pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16", "BF16"])
    def test_datatypes_without_classes(self, datatype):
        """In Triton's own words."""
        message = f"class result not available for output due to unsupported type '{datatype}'"
        assert refusal(OutputTensor("OUT", datatype, [1], b"ab")) == (Code.INVALID_ARG, message)

    def test_too_many_elements(self):
        """Scores of classes are no more than a million."""
        assert classes(np.zeros(ELEMENTS_MAX), 1, dtype=np.int8) == ([1], ["0:0"])
        code, message = refusal(output_of(np.zeros(ELEMENTS_MAX + 1, np.int8)))
        assert (code, message) == (
            Code.INVALID_ARG,
            "classification output tensor too large",
        )

    def test_contents_that_do_not_fill_the_shape(self):
        """That is the model's mistake."""
        assert refusal(OutputTensor("OUT", "INT16", [2], b"abc")) == (
            Code.INTERNAL, "output 'OUT' holds 3 bytes, expected 4",
        )  # fmt: skip


CONFIG = """
name: "m" max_batch_size: 4 input { name: "IN" data_type: TYPE_INT8 dims: 2 }
output { name: "A" data_type: TYPE_INT8 dims: 2 } output { name: "B" data_type: TYPE_INT8 dims: 2 }
"""


def test_response():
    """Of a response, only those outputs are classified that the client wants so; all else stays as it is."""
    config = normalize(parse_model_config(CONFIG, "c"), directory_name="m", files=["model.py"], gpus=())
    spec = model_spec(config)
    spec.labels["A"] = ("no", "yes")
    ab = np.array([[1, 2], [4, 3]], np.int8)
    response = InferResponse("m", 1, "id", [output_of(ab, "A"), output_of(ab, "B")], {"p": 1}, release=int)
    found = classified(response, {"A": 1}, spec)
    assert (found.outputs[0].shape, strings(found.outputs[0])) == ([2, 1], ["2:1:yes", "4:0:no"])
    assert found.outputs[1] is response.outputs[1]
    assert (found.id, found.parameters, found.release) == ("id", {"p": 1}, int)
    assert response.outputs[0].datatype == "INT8"


@pytest.mark.processes
def test_numpy_is_not_needed_before():
    """The server starts without it."""
    code = "import sys; import pyruntime.runtime.frontends.common.classification; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
