# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A document that is written in pieces is the one that is written at once, and fails with the same words."""

import struct

import numpy as np
import orjson
import pytest

from pyruntime.runtime.frontends.http import json_pieces
from pyruntime.runtime.frontends.http.json_pieces import ELEMENTS, check_elements, pieces
from pyruntime.runtime.frontends.http.json_tensors import SLICE_ELEMENTS, STRING_BYTES, unpack
from pyruntime.runtime.requests.types import OutputTensor
from pyruntime.utils.errors import InferenceError

NUMBERS = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "INT64": np.int64,
    "FP32": np.float32,
    "FP64": np.float64,
}


def never():
    return False


def number_output(datatype, count):
    array = np.resize(np.arange(-1, 126), count).astype(NUMBERS[datatype])
    return OutputTensor("OUT", datatype, [count], memoryview(array.tobytes()))


def string_output(*elements, shape=None):
    contents = b"".join(struct.pack("<I", len(each)) + each for each in elements)
    return OutputTensor("OUT", "BYTES", shape or [len(elements)], memoryview(contents))


def in_pieces(*outputs):
    document = orjson.dumps({"id": "7", "outputs": [{"name": each.name, "data": ELEMENTS} for each in outputs]})
    for output in outputs:
        check_elements(output, never)
    return list(pieces(document, outputs))


def at_once(*outputs):
    return orjson.dumps({"id": "7", "outputs": [{"name": each.name, "data": unpack(each)} for each in outputs]})


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("count", [0, 1, SLICE_ELEMENTS, SLICE_ELEMENTS + 1, 3 * SLICE_ELEMENTS])
def test_numbers(datatype, count):
    """Any number of elements, of several outputs."""
    outputs = number_output(datatype, count), number_output("UINT8", 2)
    assert b"".join(in_pieces(*outputs)) == at_once(*outputs)


def test_numbers_that_are_not_finite():
    """They have the names that Triton gives them, in the slices that have any."""
    array = np.zeros(2 * SLICE_ELEMENTS, np.float32)
    array[[0, -1]] = np.nan, -np.inf
    output = OutputTensor("OUT", "FP32", [len(array)], memoryview(array.tobytes()))
    assert b"".join(in_pieces(output)) == at_once(output)


@pytest.mark.parametrize(
    "elements",
    [
        [],
        [b""],
        [b"a", b"", 'ß\n"\\\u2028😀'.encode()],
        [b"x" * STRING_BYTES],
        [b"before", b"x" * (STRING_BYTES + 1), b"behind"],
        [b"x" * (STRING_BYTES - 1) + '😀"'.encode() * STRING_BYTES],
        ["\\😀".encode() * STRING_BYTES, "ß".encode() * STRING_BYTES],
        [b"x"] * (2 * SLICE_ELEMENTS + 1),
        [b"y" * 1000] * 2000,
    ],
    ids=lambda elements: f"{len(elements)} of {max(map(len, elements), default=0)}",
)
def test_strings(elements):
    """Short ones, long ones that are decoded in parts, characters that lie in two parts, and very many."""
    output = string_output(*elements)
    assert b"".join(in_pieces(output)) == at_once(output)


def test_a_piece_is_not_much_longer_than_it_must_be(monkeypatch):
    """Whether the contents are many elements or a long one."""
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 100 << 10)
    for output in (number_output("FP64", 1 << 17), string_output(b"x" * (1 << 20)), string_output(*[b"x" * 999] * 999)):
        made = in_pieces(output)
        assert len(made) > 3
        assert max(map(len, made)) < (100 << 10) + 25 * SLICE_ELEMENTS


@pytest.mark.parametrize(
    "output",
    [
        OutputTensor("OUT", "FP16", [1], memoryview(b"ab")),
        OutputTensor("OUT", "INT16", [2], memoryview(b"ab")),
        string_output(b"a", shape=[2]),
        string_output(b"a", b"b", shape=[1]),
        string_output(b"a", b"\xff"),
        string_output(b"a" * STRING_BYTES + "ß".encode()[:1]),
        OutputTensor("OUT", "BYTES", [1], memoryview(b"\1\0\0")),
        OutputTensor("OUT", "BYTES", [1], memoryview(b"\2\0\0\0a")),
    ],
)
def test_refused(output):
    """Before the first piece, with the code and the words of an answer that is written at once."""
    with pytest.raises(InferenceError) as expected:
        unpack(output)
    with pytest.raises(InferenceError) as found:
        in_pieces(output)
    assert (found.value.code, found.value.message) == (expected.value.code, expected.value.message)


def test_a_check_that_is_stopped():
    """It looks at no more strings, also within a long one."""
    for output in (string_output(b"x" * STRING_BYTES * 3), string_output(*[b"x"] * SLICE_ELEMENTS * 3)):
        asked = []
        check_elements(output, lambda asked=asked: asked.append(1) or True)
        assert len(asked) == 1
