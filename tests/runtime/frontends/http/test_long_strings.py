# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http import long_strings
from pyruntime.runtime.frontends.http.long_strings import LONG_BYTES, LongStrings
from pyruntime.utils.errors import InferenceError

LONG = "x" * (LONG_BYTES + 1)


def around(monkeypatch, size):
    """Have strings of more than some bytes be long."""
    monkeypatch.setattr(long_strings, "LONG_BYTES", size)


def test_short_strings_stay():
    """A document without long strings is left as it is."""
    text = json.dumps(["x" * 1000] * 1000).encode()
    assert LongStrings(text).rest is text
    assert LongStrings(text).bytes == 0


def test_long_strings_are_cut_out():
    """What is left of a document is short, and is a document."""
    text = json.dumps({"a": LONG, "b": ["c", LONG + "y"], LONG: 1}).encode()
    strings = LongStrings(text)
    document = json.loads(strings.rest)
    assert list(document) == ["a", "b", LONG]
    assert document["a"] != document["b"][1]
    assert len(strings.rest) < len(text) - 2 * LONG_BYTES + 100
    assert strings.bytes == 2 * len(LONG) + 1
    assert strings.restored(document) == json.loads(text)
    assert repr(strings) == "<LongStrings [2]>"


@given(st.recursive(st.text() | st.integers(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)))
@example([{"a" * 9: "b" * 9, 'c"\\': "\\" * 9}, "d" * 8, "\U0001f600" * 9])
def test_any_document_is_restored(value):
    """Cutting and restoring changes no document, however short its strings are."""
    with pytest.MonkeyPatch.context() as patch:
        around(patch, 8)
        for text in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False, indent=1).encode()):
            strings = LongStrings(text)
            assert strings.restored(json.loads(strings.rest)) == value


@given(st.binary() | st.lists(st.sampled_from([b'"', b"\\\\", b":", b"x" * 9, b"[", b"]", b","])).map(b"".join))
def test_any_bytes(text):
    """What is no document is cut all the same, and left to the parser."""
    with pytest.MonkeyPatch.context() as patch:
        around(patch, 8)
        LongStrings(text)


def test_the_rest_is_limited(monkeypatch):
    """What is parsed in one piece has a limit, long strings have none."""
    monkeypatch.setattr(long_strings, "REST_BYTES_MAX", 100_000)
    assert LongStrings(json.dumps({"a": LONG * 10}).encode()).bytes == 10 * len(LONG)
    with pytest.raises(InferenceError, match="more than 100000 bytes, not counting strings of more than 65536"):
        LongStrings(json.dumps(["x"] * 50_000).encode())


def test_texts_are_limited(monkeypatch):
    """A string that becomes no tensor has a limit."""
    monkeypatch.setattr(long_strings, "TEXT_BYTES_MAX", 100_000)
    strings = LongStrings(json.dumps([LONG * 2]).encode())
    with pytest.raises(InferenceError, match="has more than 100000 bytes"):
        strings.restored(json.loads(strings.rest))
