# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
import math
import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http.json_tensors import SLICE_ELEMENTS, PackedElements, pack, pack_slice, unpack
from pyruntime.runtime.requests.types import OutputTensor
from pyruntime.utils.byte_tensors import serialize_byte_tensor
from pyruntime.utils.dtypes import BY_NAME, DATATYPES
from pyruntime.utils.errors import Code, InferenceError

NUMERIC = [each.name for each in DATATYPES if each.numpy not in ("", "O", "<f2")]
INTEGERS = [name for name in NUMERIC if "INT" in name]


def packing(datatype, shape, contents):
    with pytest.raises(InferenceError) as caught:
        pack("X", datatype, shape, contents)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def unpacking(datatype, shape, contents):
    with pytest.raises(InferenceError) as caught:
        unpack(OutputTensor("Y", datatype, shape, contents))
    return caught.value


@pytest.mark.parametrize("datatype", NUMERIC)
def test_numbers_are_packed_as_numpy_has_them(datatype):
    """The bytes are those of a C-ordered array, whether the list is flat or nested."""
    values = [True, False, True, True] if datatype == "BOOL" else [1, 0, 7, 100]
    wanted = np.array(values, BY_NAME[datatype].numpy).tobytes()
    assert pack("X", datatype, [2, 2], values) == wanted
    assert pack("X", datatype, [2, 2], [values[:2], values[2:]]) == wanted
    assert pack("X", datatype, [4], [[[each]] for each in values]) == wanted
    assert unpack(OutputTensor("Y", datatype, [2, 2], wanted)) == values


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_reach_their_bounds_and_not_beyond(datatype):
    """The least and the greatest integer of a datatype are accepted, their neighbours are refused by name."""
    bounds = np.iinfo(BY_NAME[datatype].numpy)
    low, high = int(bounds.min), int(bounds.max)
    packed = pack("X", datatype, [2], [low, high])
    assert unpack(OutputTensor("Y", datatype, [2], packed)) == [low, high]
    for value in (low - 1, high + 1):
        message = f"input 'X' holds {value}, which is out of range for {datatype}"
        assert packing(datatype, [3], [low, value, high]) == message


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_floats_take_integers_and_become_infinite_beyond_their_range(datatype):
    """Integers are valid for floats; a number beyond a float's range is infinite, one beyond a double's is refused."""
    dtype = BY_NAME[datatype].numpy
    assert pack("X", datatype, [3], [1, 2.5, -0.0]) == np.array([1, 2.5, -0.0], dtype).tobytes()
    assert pack("X", datatype, [2], [math.inf, math.nan])[:4] == np.array([math.inf], dtype).tobytes()[:4]
    assert "out of range" in packing(datatype, [1], [10**400])
    assert pack("X", "FP32", [1], [1e39]) == np.array([math.inf], "<f4").tobytes()


@pytest.mark.parametrize(
    ("datatype", "contents", "message"),
    [
        ("INT32", [1, 2.0], "the data of input 'X' must hold integers for INT32, got a double"),
        ("INT32", [1, True], "the data of input 'X' must hold integers for INT32, got a boolean"),
        ("UINT8", [1, None], "the data of input 'X' must hold integers for UINT8, got null"),
        ("FP32", [1, "2"], "the data of input 'X' must hold numbers for FP32, got a string"),
        ("FP64", [1.0, [None]], "the data of input 'X' must hold numbers for FP64, got null"),
        ("BOOL", [True, 1], "the data of input 'X' must hold true or false for BOOL, got an integer"),
        ("BYTES", ["a", {}], "the data of input 'X' must hold strings for BYTES, got an object"),
        ("INT32", 3, "'data' of input 'X' must be a list, got an integer"),
        ("INT32", None, "'data' of input 'X' must be a list, got null"),
        ("INT32", [1, 2, 3], "unexpected number of elements for input 'X': expected 2, got 3"),
        ("BYTES", [["a"], []], "unexpected number of elements for input 'X': expected 2, got 1"),
    ],
)
def test_what_does_not_suit_is_refused(datatype, contents, message):
    """The message names the input, the expected type and the value."""
    assert packing(datatype, [2], contents) == message


@pytest.mark.parametrize("datatype", ["INT8", "FP64", "BYTES"])
def test_more_elements_than_there_can_be(datatype):
    """Triton counts elements and bytes in signed 64-bit integers."""
    assert packing(datatype, [2**62, 2, 3], [1]) == (
        "invalid shape for input 'X': shape [4611686018427387904,2,3] causes total element count to exceed maximum "
        "size of 9223372036854775807"
    )
    assert packing("FP64", [2**60], [1]) == (
        "byte size overflow for input 'X': element count (1152921504606846976) * data type size (8) exceeds maximum "
        "allowed size (9223372036854775807)"
    )


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_have_no_json_form(datatype):
    """Half floats are refused both ways, with Triton's messages."""
    assert packing(datatype, [1], [1.0]) == (
        f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input 'X'"
    )
    error = unpacking(datatype, [1], b"\0\0")
    assert error.code is Code.INVALID_ARG
    assert error.message == (
        f"sending {datatype} data via JSON is not supported. Please use the binary data format for output 'Y'"
    )


@pytest.mark.parametrize("datatype", [*NUMERIC, "BYTES"])
def test_empty_and_scalar(datatype):
    """A dimension of 0 means no elements, no dimensions mean one."""
    assert pack("X", datatype, [0, 3], []) == b""
    assert pack("X", datatype, [2, 0], [[], []]) == b""
    assert unpack(OutputTensor("Y", datatype, [0, 3], memoryview(b""))) == []
    value = {"BYTES": "é", "BOOL": True}.get(datatype, 5)
    assert unpack(OutputTensor("Y", datatype, [], memoryview(pack("X", datatype, [], [value])))) == [value]


def test_strings_are_written_as_utf8_behind_their_length():
    """A BYTES element is its length in bytes and its UTF-8; both ways."""
    packed = pack("X", "BYTES", [3], ["", "é", "a\0b"])
    assert packed == b"\0\0\0\0" + b"\x02\0\0\0\xc3\xa9" + b"\x03\0\0\0a\0b"
    assert unpack(OutputTensor("Y", "BYTES", [3], memoryview(packed))) == ["", "é", "a\0b"]


def test_bytes_that_are_no_text_have_no_json_form():
    """An element that is not UTF-8 is refused, with advice."""
    error = unpacking("BYTES", [2], b"\x01\0\0\0a\x01\0\0\0\xff")
    assert error.code is Code.INVALID_ARG
    assert error.message == (
        "element 1 of output 'Y' is not UTF-8 and can not be sent via JSON. "
        "Please use the binary data format for output 'Y'"
    )


def test_contents_that_do_not_fill_the_shape_are_internal():
    """A model's mistake is not the client's."""
    wire = b"\x02\0\0\0ab"
    for error, message in (
        (unpacking("FP32", [2], bytes(7)), "output 'Y' holds 7 bytes, expected 8"),
        (unpacking("BYTES", [2], wire), "output 'Y' holds 1 elements, expected 2"),
        (unpacking("BYTES", [2], wire + b"\x01\0"), "output 'Y' ends within the length of element 1"),
        (unpacking("BYTES", [1], wire[:-1]), "output 'Y' ends within element 0"),
    ):
        assert error.message == message
        assert error.code is Code.INTERNAL


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_non_finite_numbers_are_written_by_name(datatype):
    """NaN and the infinities are written as in Triton, and other numbers beside them as usual."""
    contents = np.array([1.5, math.nan, math.inf, -math.inf], BY_NAME[datatype].numpy).tobytes()
    written = orjson.dumps(unpack(OutputTensor("Y", datatype, [4], contents)))
    assert written == b"[1.5,NaN,Infinity,-Infinity]"


@pytest.mark.parametrize(
    ("datatype", "value", "written"),
    [
        ("INT64", -7, b"-7"), ("BOOL", True, b"true"), ("FP32", 1.5, b"1.5"), ("BYTES", "é", '"é"'.encode()),
        ("FP64", math.nan, b"NaN"), ("FP32", -math.inf, b"-Infinity"),
    ],
)  # fmt: skip
def test_one_element_may_stand_for_itself(datatype, value, written):
    """Where it is asked for, one element comes without its list, however many dimensions it has; more do not."""
    for count, wanted in [(0, b"[]"), (1, written), (2, b"[%b,%b]" % (written, written))]:
        output = OutputTensor("Y", datatype, [1, count], memoryview(pack("X", datatype, [count], [value] * count)))
        assert orjson.dumps(unpack(output, unwrap=True)) == wanted


def test_finite_numbers_with_an_infinite_sum():
    """Numbers may be finite though their sum is not."""
    values = [1.7e308, 1.7e308]
    written = orjson.dumps(unpack(OutputTensor("Y", "FP64", [2], struct.pack("<2d", *values))))
    assert json.loads(written) == values


@given(st.lists(st.floats(width=32)))
def test_floats_come_back(values):
    """Numbers are unchanged after packing and unpacking."""
    packed = pack("X", "FP32", [len(values)], values)
    written = orjson.dumps(unpack(OutputTensor("Y", "FP32", [len(values)], packed)))
    assert repr(json.loads(written)) == repr(values)


@given(st.lists(st.text()))
def test_strings_come_back(values):
    """Strings are unchanged after packing and unpacking."""
    packed = pack("X", "BYTES", [len(values)], values)
    assert unpack(OutputTensor("Y", "BYTES", [len(values)], packed)) == values


@pytest.mark.parametrize("contents", [[1, [2, 3]], [[1], 2, [[3]]], [[[1, 2]], [], 3]])
def test_lists_that_nest_unevenly(contents):
    """As in Triton, only the elements count."""
    assert pack("X", "INT8", [3], contents) == b"\1\2\3"


class TestSlices:
    """Large tensors are converted from and to JSON slice by slice, with the same result."""

    @pytest.mark.parametrize("count", [SLICE_ELEMENTS, SLICE_ELEMENTS + 1, 3 * SLICE_ELEMENTS])
    def test_numbers(self, count):
        """None is lost between slices, and those that are not finite do not mind either."""
        values = np.arange(count, dtype=np.float32)
        values[-1] = np.inf
        found = unpack(OutputTensor("X", "FP32", [count], memoryview(values.tobytes())))
        assert json.loads(orjson.dumps(found)) == values.tolist()

    @pytest.mark.parametrize("count", [SLICE_ELEMENTS, SLICE_ELEMENTS + 1, 3 * SLICE_ELEMENTS])
    def test_strings(self, count):
        """Strings are converted slice by slice, with the same result; their number is checked at the end."""
        values = [f"é{n}" for n in range(count)]
        contents = bytes(serialize_byte_tensor(np.array([value.encode() for value in values], object)))
        output = OutputTensor("X", "BYTES", [count], memoryview(contents))
        assert json.loads(orjson.dumps(unpack(output))) == values
        for shape, part in (([count - 1], contents), ([count + 1], contents), ([count], contents[:-1])):
            with pytest.raises(InferenceError):
                unpack(OutputTensor("X", "BYTES", shape, memoryview(part)))

    def test_pack(self):
        """Slices are places in a document; their tensor bytes follow each other in memory."""
        text, memory, at = b'{"data": [1, 2,[3,4]]}', memoryview(bytearray(4)), 0
        for start, end in ((10, 11), (12, 14), (15, 20)):
            count, size = pack_slice("X", "INT8", text[start:end], start, memory[at:])
            assert count == size
            at += size
        packed = PackedElements(memory, 4, -1)
        assert pack("X", "INT8", [2, 2], packed) == b"\1\2\3\4"
        with pytest.raises(InferenceError, match="expected 3, got 4"):
            pack("X", "INT8", [3], packed)

    def test_too_little_memory(self):
        """What does not fit is checked and counted, and not written."""
        memory = memoryview(bytearray(3))
        assert pack_slice("X", "INT16", b"1, 2", 0, memory) == (2, 4)
        assert memory == bytes(3)
        with pytest.raises(InferenceError, match="out of range"):
            pack_slice("X", "INT16", b"1, 70000", 0, memory)
