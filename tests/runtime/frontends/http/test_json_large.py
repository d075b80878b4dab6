# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large documents: what is cut out of them, and that it makes no difference."""

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.common.json_document import VALUES_MAX, parse_document
from pyruntime.runtime.frontends.http import json_large, json_tensors
from pyruntime.runtime.frontends.http.json_large import REST_BYTES_MAX, SLICE_BYTES, LargeDocument
from pyruntime.runtime.frontends.http.json_tensors import PackedElements, flatten, pack
from pyruntime.runtime.frontends.http.kserve_request import TENSORS_MAX
from pyruntime.utils.byte_tensors import serialize_byte_tensor
from pyruntime.utils.errors import Code, InferenceError


def document(data, datatype="INT32", **more):
    shape = [len(flatten("IN", data)) if type(data) is list else 1]
    return {"inputs": [{"name": "IN", "datatype": datatype, "shape": shape, "data": data}], **more}


def parse_large(text):
    """The document, with its tensors in memory of their own, which is all used up to alignment."""
    large = LargeDocument(text)
    size = large.read()
    return large.pack(memoryview(bytearray(size)))


def data_of(text, index=0):
    return parse_large(text)["inputs"][index]["data"]


def strings(*values):
    return bytes(serialize_byte_tensor(np.array([value.encode() for value in values], object)))


def refusal(text):
    with pytest.raises(InferenceError) as caught:
        parse_large(text)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


NUMBERS = list(range(SLICE_BYTES // 2))
LARGE = [
    pytest.param("INT32", NUMBERS, np.array(NUMBERS, np.int32).tobytes(), id="integers"),
    pytest.param("FP64", [0.1] * 50_000, struct.pack("<d", 0.1) * 50_000, id="floats"),
    pytest.param("BOOL", [True, False] * 20_000, b"\1\0" * 20_000, id="booleans"),
    pytest.param("BYTES", ['a,"]', "\\", "é", ""] * 9000, strings('a,"]', "\\", "é", "") * 9000, id="strings"),
    pytest.param("BYTES", ["x" * SLICE_BYTES, "y", "z" * SLICE_BYTES], None, id="long-strings"),
    pytest.param("INT32", [[n, n] for n in NUMBERS], np.repeat(np.array(NUMBERS, np.int32), 2).tobytes(), id="rows"),
    pytest.param(
        "INT32", [[[[n]], [[n]]] for n in NUMBERS], np.repeat(np.array(NUMBERS, np.int32), 2).tobytes(), id="nested"
    ),
    pytest.param("INT32", [1, [[2, 3]], [4]] * 9000, struct.pack("<4i", 1, 2, 3, 4) * 9000, id="uneven"),
    pytest.param("BYTES", [[["[a", "]"], ["]]", "["]]] * 9000, strings("[a", "]", "]]", "[") * 9000, id="brackets"),
    pytest.param(
        "BYTES", [["x", [["\\" * SLICE_BYTES]]], "y"], strings("x", "\\" * SLICE_BYTES, "y"), id="nested-long-strings"
    ),
]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " :\t")])
@pytest.mark.parametrize(("datatype", "data", "packed"), LARGE)
def test_what_is_large_is_packed(datatype, data, packed, separators):
    """However it is written."""
    text = json.dumps(document(data, datatype, id="x"), separators=separators).encode()
    found = data_of(text)
    assert type(found) is PackedElements
    shape = [len(flatten("IN", data))]
    assert found.contents == (strings(*data) if packed is None else packed)
    assert pack("IN", datatype, shape, found) == found.contents
    assert type(found.contents) is memoryview
    assert parse_large(text) | {"inputs": []} == {"id": "x", "inputs": []}


@pytest.mark.parametrize(
    "data", [[1, 2], [], [[], [[n for n in NUMBERS[:9000]]]], [{"a": n} for n in NUMBERS[:9000]], "x" * SLICE_BYTES * 2]
)
def test_what_is_small_or_odd_stays(data):
    """It is parsed with all the rest."""
    text = json.dumps(document(data)).encode()
    assert parse_large(text) == parse_document(text)


def test_several_inputs():
    """Each has its own."""
    inputs = [document([n] * SLICE_BYTES)["inputs"][0] | {"name": str(n)} for n in range(3)]
    inputs.insert(1, document([7])["inputs"][0])
    text = json.dumps({"inputs": inputs}).encode()
    found = [entry["data"] for entry in parse_large(text)["inputs"]]
    assert found[1] == [7]
    assert [found[at].contents[:4] for at in (0, 2, 3)] == [struct.pack("<i", n) for n in range(3)]
    assert {found[at].length for at in (0, 2, 3)} == {SLICE_BYTES}


def test_places():
    """Each tensor begins at a multiple of 64 bytes, and knows where it is in the region."""
    inputs = [document([n] * 100)["inputs"][0] | {"name": str(n)} for n in range(3)]
    large = LargeDocument(json.dumps({"inputs": inputs}).encode())
    assert large.read() == 3 * 448
    memory = memoryview(bytearray(3 * 448))
    found = [entry["data"] for entry in large.pack(memory, 1024)["inputs"]]
    assert [each.offset for each in found] == [1024, 1024 + 448, 1024 + 896]
    assert memory[448:848] == found[1].contents == struct.pack("<i", 1) * 100


@pytest.mark.parametrize("datatype", ["FP64", "BYTES", "BOOL"])
@pytest.mark.parametrize("shape", [[], [0], [7], [1 << 40], "x", [None], [2, -1]])
def test_memory_follows_the_shape(datatype, shape):
    """A list needs no more memory than its shape says, or its text; that their sizes differ is found later."""
    text = json.dumps({"inputs": [document([1] * 5000, datatype)["inputs"][0] | {"shape": shape}]}).encode()
    most = len(text) * 4 // 3 + 64 if datatype == "BYTES" else 40_064 if shape == [1 << 40] else 64
    assert LargeDocument(text).read() <= most


def test_wrong_number_of_elements():
    """It is counted all the same."""
    text = json.dumps({"inputs": [document([1] * 5000, "FP64")["inputs"][0] | {"shape": [3]}]}).encode()
    with pytest.raises(InferenceError, match="expected 3, got 5000"):
        pack("IN", "FP64", [3], data_of(text))


@pytest.mark.parametrize(
    "data",
    [
        b"{}," * VALUES_MAX + b"{}",
        b"[]," * VALUES_MAX + b"[]",
        b"[[]]," * VALUES_MAX + b"1",
        b'{"a":1},' * VALUES_MAX + b"{}",
        b"[" * 4000 + b"1" + b"]" * 4000 + b",1" * VALUES_MAX,
    ],
    ids=["objects", "lists", "nested-lists", "members", "deep"],
)
@pytest.mark.parametrize("member", [b'"data"', b'"x"', b'"a\\"data"'])
def test_too_many_values(data, member):
    """What is no list of elements may not have many values, wherever it stands."""
    message = refusal(b'{"inputs":[{%b:[%b]}]}' % (member, data))
    assert message == f"failed to parse the request JSON buffer: it has more than {VALUES_MAX} values"


@pytest.mark.parametrize("text", [b" " * REST_BYTES_MAX + b"{}", b'{"id":"%b"}' % (b"x" * REST_BYTES_MAX)])
def test_too_much_else(text):
    """Blanks and strings beside the tensors count as well."""
    assert "not counting lists of elements" in refusal(text)


def test_too_many_lists():
    """No more lists are looked for than a request has inputs."""
    some = json.dumps(document([1] * 100)["inputs"][0]).encode()
    assert refusal(b'{"inputs":[%b]}' % b",".join([some] * (TENSORS_MAX + 1))).endswith("lists of elements")


def test_client_that_is_gone():
    """Neither step goes on then."""
    text = json.dumps(document(NUMBERS)).encode()
    gone = False
    large = LargeDocument(text, lambda: gone)
    size = large.read()
    gone = True
    for step in (LargeDocument(text, lambda: True).read, lambda: large.pack(memoryview(bytearray(size)))):
        with pytest.raises(InferenceError) as caught:
            step()
        assert caught.value.code is Code.CANCELLED


LONG = [
    "é" * SLICE_BYTES,
    "a" + "é" * SLICE_BYTES,
    "ab" + "日" * SLICE_BYTES,
    "abc" + "\U0001f600" * SLICE_BYTES,
    '"' * SLICE_BYTES,
    "a" + '"' * SLICE_BYTES,
    "\\u" * SLICE_BYTES,
    "\0" * SLICE_BYTES,
]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_long_strings(text, plain):
    """A string is cut into pieces between its characters only, however they are written."""
    data = ["x", text, "y"]
    found = data_of(json.dumps(document(data, "BYTES"), ensure_ascii=not plain).encode())
    assert found.contents == strings(*data)


BAD_ENDS = [b"\\ud83d", b"\\ude00\\ud83d", b"\\x", b"\\u12", b"\xff", b"\xe6\x97", b"\n", b"\x80" * SLICE_BYTES]


@pytest.mark.parametrize("end", BAD_ENDS, ids=range(len(BAD_ENDS)))
def test_bad_long_strings(end):
    """What is wrong in one is found, with its place."""
    text = b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["%b%b"]}]}' % (b"x" * SLICE_BYTES, end)
    assert refusal(text).startswith("failed to parse the request JSON buffer: ")


def test_long_string_that_is_no_number():
    """Of another datatype it is refused as a short one is."""
    text = json.dumps(document(["x" * 2 * SLICE_BYTES])).encode()
    assert refusal(text) == "the data of input 'IN' must hold integers for INT32, got a string"


@pytest.mark.parametrize(
    "text",
    [
        b'{"id": "\\"data\\": [%b1]", "inputs": []}',
        b'{"a\\"data": [%b1], "inputs": []}',
        b'{"data": [%b1], "inputs": [{"data": 1}, 2]}',
        b'{"inputs": {"data": [%b1]}}',
        b'{"outputs": [{"name": "x", "data": [%b1]}]}',
        b'["data", [%b1]]',
    ],
)
def test_what_is_no_input(text):
    """A string that looks like data is one; a list that is nobody's data is still a list."""
    whole = text % (b"1," * (SLICE_BYTES // 2))

    def shape(value):
        if type(value) is dict:
            return {key: shape(each) for key, each in value.items()}
        if type(value) is list and value and type(value[0]) is dict:
            return [shape(each) for each in value]
        return list if type(value) is list and value else value

    if text.startswith(b"["):
        assert refusal(whole) == "the request must be a JSON object, got a list"
    else:
        assert shape(parse_large(whole)) == shape(parse_document(whole))


@pytest.mark.parametrize("member", [{"datatype": "FP16"}, {"datatype": "X"}, {"datatype": 1}, {"name": None}])
def test_inputs_that_are_refused_anyway(member):
    """Their data is not looked at."""
    text = json.dumps({"inputs": [document(["x"] * SLICE_BYTES)["inputs"][0] | member]}).encode()
    assert data_of(text) == []


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (b'"x"]', "the data of input 'IN' must hold integers for INT32, got a string"),
        (b"1.5]", "the data of input 'IN' must hold integers for INT32, got a double"),
        (b"2147483648]", "input 'IN' holds 2147483648, which is out of range for INT32"),
        (b"[null]]", "the data of input 'IN' must hold integers for INT32, got null"),
        (b"]", "failed to parse the request JSON buffer: "),
        (b"1", "failed to parse the request JSON buffer: "),
        (b"1 1]", "failed to parse the request JSON buffer: "),
        (b"1}", "failed to parse the request JSON buffer: "),
        (b'"x]', "failed to parse the request JSON buffer: "),
        (b"01]", "failed to parse the request JSON buffer: "),
    ],
)
def test_mistakes(end, message):
    """A mistake in the last slice is found like any other."""
    text = json.dumps(document(NUMBERS)).encode().replace(b"]}]}", b", %b}]}" % end)
    assert refusal(text).startswith(message)


def test_place_of_a_mistake():
    """It is counted in bytes from the beginning of the document."""
    text = json.dumps(document(NUMBERS)).encode().replace(b"]}]}", b", x, 1]}]}")
    assert refusal(text).endswith(f" at {text.index(b'x')}")


def test_numbers_that_are_not_finite():
    """They are read as in a small document."""
    shape = SLICE_BYTES + 2
    text = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[%d],"data":[%bNaN,-Infinity]}]}' % (
        shape,
        b"1," * SLICE_BYTES,
    )
    found = data_of(text)
    last, least = struct.unpack("<2f", found.contents[-8:])
    assert (found.length, math.isnan(last), least) == (SLICE_BYTES + 2, True, -math.inf)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\],[{:é', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["data", 'a"', "x"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(data=st.lists(JSON, max_size=8), cut=st.integers(0, 40), spaced=st.booleans())
def test_any(data, cut, spaced):
    """With slices of a few bytes, and whatever is in the list, or missing of it: the outcome is that of one piece."""
    text = json.dumps(document(data, "BYTES"), separators=(", ", ": ") if spaced else (",", ":")).encode()
    text = text[: len(text) - cut] if cut > 20 else text

    def outcome(parse):
        try:
            entry = parse(text)["inputs"][0]
            values = entry["data"]
            # Lists may be nested unevenly: what counts is how many elements there are in the end.
            count = len(flatten("IN", values)) if type(values) is list else values.length
            return pack("IN", "BYTES", [count], values)
        except InferenceError as exc:
            return exc.code

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_large, "SLICE_BYTES", 5)
        patch.setattr(json_large, "SHORT_BYTES_MAX", 5)
        patch.setattr(json_tensors, "STRING_BYTES", 12)  # a pair of surrogates
        assert outcome(parse_large) == outcome(parse_document)
