# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The reader of JSON for backends in C++ reads what Python's reads, and refuses what that refuses."""

import ctypes
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(-1e15, 1e15)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)
BROKEN = [
    "",
    " ",
    "nul",
    "[1,]",
    "[1 2]",
    "[1",
    '{"a" 1}',
    '{"a": 1,}',
    "{1: 2}",
    '{"a": 1',
    "1 2",
    "01",
    "-",
    "1.",
    ".5",
    "1e",
    "+1",
    '"open',
    '"\n"',
    '"\\x"',
    '"\\',
    '"\\u12',
    '"\\u12x4"',
    "[" * 1000,
]
FORMS = [
    r'"\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00"',
    "1E2",
    "-0.5e-1",
    "1e+3",
    "-0",
    " [ ] ",
    "\t{\r\n}",
    "9" * 30,
]
# Python's reader takes these, and makes strings of them that cannot be encoded.
HALVES = [r'"\ud800"', r'"\ud800\ud800"', r'"\ud800x"', r'"\udc00"']


@pytest.fixture(scope="module")
def read(compile_library):
    """`read(text)`: what our reader says of a document, in a form of its own."""
    library = ctypes.CDLL(str(compile_library("hpp/json.cc")))
    library.ReadJson.restype = ctypes.c_size_t

    def read(text):
        data = text.encode()
        room = ctypes.create_string_buffer(1 << 20)
        size = library.ReadJson(data, ctypes.c_size_t(len(data)), room, ctypes.c_size_t(len(room)))
        assert size <= len(room)
        return room.raw[:size].decode()

    return read


def written(value):
    """The value that Python has read, in the same form."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int):
        return f"int {value}"
    if isinstance(value, float):
        return f"double {value:f}"
    if isinstance(value, str):
        return f"string {len(value.encode())} {value}"
    if isinstance(value, list):
        return f"[{''.join(f'{written(each)};' for each in value)}]"
    return f"{{{''.join(f'{key}: {written(each)};' for key, each in value.items())}}}"


@given(document=DOCUMENTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 0, 3]))
def test_any_document(read, document, ascii_only, indent):
    """Documents are read in every style of writing them."""
    assert read(json.dumps(document, ensure_ascii=ascii_only, indent=indent)) == written(document)


@pytest.mark.parametrize("text", FORMS)
def test_forms(read, text):
    """Forms that Python reads and does not write."""
    value = json.loads(text)
    assert read(text) == written(float(value) if isinstance(value, int) and abs(value) >= 2**63 else value)


@pytest.mark.parametrize("text", [*BROKEN, *HALVES])
def test_broken(read, text):
    """A text that is not JSON is refused, with the place."""
    assert read(text).startswith("JSON: ")
    assert ", at byte " in read(text)
