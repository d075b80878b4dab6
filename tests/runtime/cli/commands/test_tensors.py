# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Values that people write, as tensors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.cli.commands.tensors import (
    TensorError,
    TensorSpec,
    decode,
    decode_file,
    encode,
    fit_array,
    to_array,
    to_json,
)
from pyruntime.utils.dtypes import DATATYPES

INTEGERS = [each.name for each in DATATYPES if each.name.startswith(("INT", "UINT"))]
FLOATS = ["FP16", "FP32", "FP64", "BF16"]


def spec(datatype="FP32", *shape):
    return TensorSpec("X", datatype, shape)


def refusal(function, *arguments):
    with pytest.raises(TensorError) as caught:
        function(*arguments)
    return str(caught.value)


class TestShape:
    @pytest.mark.parametrize(
        ("wanted", "value", "shape"),
        [
            ((-1,), [1, 2, 3], (3,)),
            ((3,), [1, 2, 3], (3,)),
            ((-1, 3), [[1, 2, 3]], (1, 3)),
            ((-1, 3), [1, 2, 3], (1, 3)),
            ((-1, 3), [1, 2, 3, 4, 5, 6], (2, 3)),
            ((2, 3), [1, 2, 3, 4, 5, 6], (2, 3)),
            ((-1, -1), [1, 2, 3], (1, 3)),
            ((-1,), 1, (1,)),
            ((1,), 1, (1,)),
            ((-1, 1), 1, (1, 1)),
            ((-1, 1), [1, 2], (2, 1)),
            ((), 1, ()),
            ((-1,), [], (0,)),
            ((-1, 2, 2), [[1, 2], [3, 4]], (1, 2, 2)),
        ],
    )
    def test_fits(self, wanted, value, shape):
        """Leading dimensions need not be written, and a flat list is laid out as the model wants it."""
        array = to_array(spec("INT32", *wanted), value)
        assert array.shape == shape
        assert array.ravel().tolist() == np.ravel(value).tolist()

    @pytest.mark.parametrize(
        ("wanted", "value", "shape"),
        [
            ((4,), [1, 2, 3], [3]),
            ((4,), 1, []),
            ((-1, 4), [1, 2, 3], [3]),
            ((-1, 3), [[1, 2]], [1, 2]),
            ((-1,), [[1]], [1, 1]),
            ((-1, -1, 4), [1, 2, 3, 4, 5, 6, 7, 8], [8]),
            ((-1, 0), [1], [1]),
        ],
    )
    def test_does_not_fit(self, wanted, value, shape):
        """Both shapes are said."""
        said = refusal(to_array, spec("INT32", *wanted), value)
        assert said == f"its shape is {shape}, the model wants {list(wanted)}"

    @pytest.mark.parametrize("datatype", ["INT32", "FP32", "BOOL"])
    @pytest.mark.parametrize("value", [[[1, 2], [3]], [1, [2]]])
    def test_ragged(self, datatype, value):
        """Lists of one level are of one length."""
        assert refusal(to_array, spec(datatype, -1, -1), value) == "its lists are not all of one length"

    @pytest.mark.parametrize("value", [[["a", "b"], ["c"]], ["a", ["b"]], ["a", 1], [None], {"a": 1}, [{}]])
    def test_no_texts(self, value):
        """BYTES holds texts alone."""
        assert "must hold texts" in refusal(to_array, spec("BYTES", -1, -1), value)


class TestNumbers:
    @pytest.mark.parametrize("datatype", INTEGERS)
    def test_ranges_of_integers(self, datatype):
        """The smallest and the largest one travel; beyond them nothing wraps."""
        bits = int(datatype.lstrip("UINT"))
        low, high = (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        wanted = spec(datatype, -1)
        for value in (low, high):
            array = to_array(wanted, [value])
            assert decode(spec(datatype, 1), encode(datatype, array)).tolist() == [value]
        for value in (low - 1, high + 1):
            assert f"out of range for {datatype}" in refusal(to_array, wanted, [value]) or bits == 64
            with pytest.raises(TensorError):
                to_array(wanted, [value])

    @pytest.mark.parametrize(
        ("datatype", "value", "noun"),
        [
            ("INT32", [1.5], "integers"),
            ("UINT8", [True], "integers"),
            ("INT64", ["1"], "integers"),
            ("INT64", [None], "integers"),
            ("FP32", ["1"], "numbers"),
            ("FP32", [True], "numbers"),
            ("BF16", {"a": 1}, "numbers"),
            ("BOOL", [1], "true and false"),
        ],
    )
    def test_other_kinds(self, datatype, value, noun):
        """A value is not converted if its meaning would change."""
        assert refusal(to_array, spec(datatype, -1), value) == f"it must hold {noun} for {datatype}"

    @pytest.mark.parametrize("datatype", FLOATS)
    @pytest.mark.parametrize("value", [0.0, -1.5, 3, float("inf"), float("-inf")])
    def test_floats(self, datatype, value):
        """They travel, and come back."""
        assert decode(spec(datatype, 1), encode(datatype, to_array(spec(datatype, -1), [value]))).tolist() == [value]

    @pytest.mark.parametrize("datatype", FLOATS)
    def test_nan(self, datatype):
        """NaN is unchanged."""
        assert np.isnan(decode(spec(datatype, 1), encode(datatype, to_array(spec(datatype, -1), [float("nan")]))))

    def test_too_large_for_a_float(self):
        """It is infinite, as for the server."""
        assert to_array(spec("FP16", -1), [1e9]).tolist() == [float("inf")]

    def test_bf16_is_rounded_to_even(self):
        """To the nearest, and of two that are as near to the even one."""
        values = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20]
        array = decode(spec("BF16", 3), encode("BF16", to_array(spec("BF16", -1), values)))
        assert array.tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]

    def test_booleans(self):
        """They are a byte each."""
        assert encode("BOOL", to_array(spec("BOOL", -1), [True, False])) == b"\x01\x00"


class TestTexts:
    @given(st.lists(st.text(alphabet=st.characters(codec="utf-8"))))
    def test_there_and_back(self, texts):
        """Arbitrary texts are unchanged after encoding and decoding."""
        array = to_array(spec("BYTES", -1), texts)
        assert to_json(decode(spec("BYTES", len(texts)), encode("BYTES", array))) == texts

    def test_what_is_no_text(self):
        """It is shown with escapes."""
        assert to_json(np.array([[b"a\xff"]], dtype=object)) == [["a\\xff"]]

    def test_nested(self):
        """Shapes are as for numbers."""
        assert to_array(spec("BYTES", -1, 2), [["a", "b"]]).shape == (1, 2)
        assert to_array(spec("BYTES", 1), "a").shape == (1,)


class TestArrays:
    def test_numbers(self):
        """An array from a file may be of another datatype that means the same."""
        array = fit_array(spec("FP32", -1, 3), np.arange(3, dtype="f8"))
        assert (array.dtype, array.shape) == (np.dtype("f4"), (1, 3))
        assert "must hold integers" in refusal(fit_array, spec("INT32", -1), np.zeros(3))

    @pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([b"a", b"b"])])
    def test_texts(self, array):
        """Both of numpy's kinds."""
        assert encode("BYTES", fit_array(spec("BYTES", -1), array)) == b"\1\0\0\0a\1\0\0\0b"

    def test_no_texts(self):
        """Numbers are refused for BYTES."""
        assert refusal(fit_array, spec("BYTES", -1), np.zeros(3)) == "an array of float64 is none of texts"


class TestFiles:
    @pytest.mark.parametrize(
        ("wanted", "shape"), [((-1,), (4,)), ((4,), (4,)), ((-1, 2), (2, 2)), ((2, 2), (2, 2)), ((-1, 4), (1, 4))]
    )
    def test_bytes_of_a_tensor(self, wanted, shape):
        """The shape is the only one that there can be."""
        array = decode_file(spec("INT16", *wanted), np.arange(4, dtype="<i2").tobytes())
        assert array.tolist() == np.arange(4).reshape(shape).tolist()

    @pytest.mark.parametrize("wanted", [(-1, -1), (3,), (-1, 3), (-1, 0)])
    def test_no_shape(self, wanted):
        """A shape that is missing or ambiguous is refused."""
        said = refusal(decode_file, spec("INT16", *wanted), bytes(8))
        assert said == f"4 elements do not say which shape {list(wanted)} is; .npy files do"

    def test_half_an_element(self):
        """A part of an element is refused."""
        assert refusal(decode_file, spec("INT16", -1), bytes(3)) == "3 bytes are no whole number of INT16"

    def test_one_text(self):
        """A file is one element of BYTES, for any contents."""
        assert decode_file(spec("BYTES", -1, 1), b"a\xff\n").tolist() == [[b"a\xff\n"]]

    @pytest.mark.parametrize(
        ("datatype", "data"),
        [("INT16", bytes(3)), ("BF16", bytes(2)), ("BYTES", b"\1\0"), ("BYTES", b""), ("INT4", b"")],
    )
    def test_what_a_server_gets_wrong(self, datatype, data):
        """It is said."""
        said = refusal(decode, spec(datatype, 2), data)
        assert said == f"its bytes are no {datatype} of shape [2]"
