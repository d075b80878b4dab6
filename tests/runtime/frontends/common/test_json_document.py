# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.common import json_document
from pyruntime.runtime.frontends.common.json_document import (
    JSON_DEPTH_MAX,
    SHOWN_LENGTH_MAX,
    find_duplicate,
    json_name,
    parse_document,
    refuse_ambiguous,
    shown,
)
from pyruntime.utils.errors import Code, InferenceError


def refusal(text):
    with pytest.raises(InferenceError) as caught:
        parse_document(text)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


def nested(depth, opening, closing):
    """An object that holds brackets nested in brackets, `depth` levels with the object itself."""
    return b'{"a":' + opening * (depth - 1) + b"0" + closing * (depth - 1) + b"}"


def test_object_is_parsed():
    """A document is an object; of members with one name the last counts."""
    assert parse_document(b' {"a": [1, 2.5, "x", true, null], "b": 1, "b": 2} ') == {
        "a": [1, 2.5, "x", True, None],
        "b": 2,
    }


def test_mark_of_utf_8_is_skipped():
    """A document may begin with the mark that some editors write, once."""
    document = {"a": {"b": 1}}
    text = b'\xef\xbb\xbf{"a": {"b": 1}}'
    assert parse_document(text) == parse_document(bytearray(text)) == document
    assert find_duplicate(b'\xef\xbb\xbf{"a": {"b": 1, "b": 2}, "c": "::"}', document) == "b"
    with pytest.raises(InferenceError, match="failed to parse the request JSON buffer"):
        parse_document(b"\xef\xbb\xbf" + text)
    with pytest.raises(InferenceError, match="The document is empty"):
        parse_document(b"\xef\xbb\xbf")


def test_empty_text_is_refused_in_tritons_words():
    """A request without a body has another message than one with a broken body."""
    assert refusal(b"") == "failed to parse the request JSON buffer: The document is empty. at 0"


@pytest.mark.parametrize(("text", "position"), [(b"{", 1), (b'{"a":nan}', 5), (b'{"\xff":1}', 0)])
def test_what_is_not_json_is_refused(text, position):
    """The message has the parser's reason and the position."""
    assert re.fullmatch(rf"failed to parse the request JSON buffer: .+ at {position}", refusal(text))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"[]", "a list"),
        (b'"x"', "a string"),
        (b"true", "a boolean"),
        (b"1", "an integer"),
        (b"1.5", "a double"),
        (b"null", "null"),
    ],
)
def test_other_values_are_no_documents(text, name):
    """A document is an object and nothing else."""
    assert refusal(text) == f"the request must be a JSON object, got {name}"


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"b":', b"}")])
def test_depth_is_limited(opening, closing):
    """Brackets nest as deep as the limit and no deeper, wherever they stand."""
    assert parse_document(nested(JSON_DEPTH_MAX, opening, closing))
    for depth in (JSON_DEPTH_MAX + 1, 900, 5000):
        assert refusal(nested(depth, opening, closing)) == "JSON nesting depth exceeds maximum allowed limit (100)"


def test_many_brackets_are_not_deep():
    """The limit is on depth and not on the number of lists."""
    assert len(parse_document(b'{"a":[' + b"[1]," * 1000 + b"[]]}")["a"]) == 1001


def test_brackets_in_strings_are_not_deep():
    """Brackets within strings do not nest."""
    assert parse_document(b'{"a":"' + b"[" * 1000 + b'"}')


def test_non_finite_numbers_are_read():
    """NaN and the infinities are numbers, as they are for Triton and for its clients."""
    a, b, c = parse_document(b'{"a":[NaN,Infinity,-Infinity]}')["a"]
    assert math.isnan(a)
    assert (b, c) == (math.inf, -math.inf)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":NaN',
        b'{"a":[NaN,"\xff"]}',
        b'{"a":[NaN,"\\ud800"]}',
        b'{"a":[NaN,' + b"1" * 5000 + b"]}",
        b'{"a":NaN,"b":' + b"[" * 5000 + b"]" * 5000 + b"}",
        '{"a":NaN}'.encode("utf-16"),
    ],
)
def test_non_finite_numbers_excuse_nothing_else(text):
    """A document with NaN is held to the same rules as any other."""
    assert refusal(text).startswith("failed to parse the request JSON buffer: ")


def test_depth_is_limited_beside_non_finite_numbers():
    """A document with NaN may not nest deeper than any other."""
    deep = b"[" * JSON_DEPTH_MAX + b"NaN" + b"]" * JSON_DEPTH_MAX
    assert refusal(b'{"a":' + deep + b"}") == "JSON nesting depth exceeds maximum allowed limit (100)"


def test_values_are_shown_short():
    """A message shows a short value as JSON, a long one in part, and a container by its kind."""
    assert [shown(value) for value in ("x", 1, None, {}, [1])] == ['"x"', "1", "null", "an object", "a list"]
    assert shown("x" * 1000) == '"' + "x" * (SHOWN_LENGTH_MAX - 1) + "..."
    assert json_name({}) == "an object"


@given(st.binary())
def test_any_bytes(text):
    """Bytes are an object or refused, and nothing else happens."""
    try:
        document = parse_document(text)
    except InferenceError:
        return
    assert type(document) is dict


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), values, max_size=3))
def test_any_object(document):
    """Every document that the standard library writes, infinities included, is parsed to an equal one."""
    assert parse_document(json.dumps(document).encode()) == document


def duplicate(text):
    return find_duplicate(text, parse_document(text))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"a": 1, "b": ":", "a": ":"}', "a"),
        (b'{"a": {"b": 1, "b": 2}}', "b"),
        (b'{"a": {"b": 1}, "a": {}}', "a"),
        (b'{"a": [{"b": {"c": 1, "d": NaN, "d": 1e999}}]}', "d"),
        ('{"é": 1, "\\u00e9": 2}'.encode(), "é"),
        (b'{"a": %b, "a": 1}' % (b"9" * 300), "a"),
        (b'{"a": 1}', None),
        (b"{}", None),
        (b'{"a": ":::", "b:": {"a": 1}, "c": [{"a": 1}, {"a": 1}]}', None),
    ],
)
def test_members_that_are_there_twice(text, name):
    """A member that an object has twice is found, at any depth; colons in strings are no members."""
    assert duplicate(text) == name


def test_large_documents_are_not_searched(monkeypatch):
    """Of a large document the last member counts; that it cannot have any twice is seen all the same."""
    monkeypatch.setattr(json_document, "DUPLICATE_BYTES_MAX", 10)
    assert duplicate(b'{"a": 1, "a": 1}') is None


@given(st.dictionaries(st.text(max_size=3), values, min_size=1, max_size=3), st.booleans(), st.data())
def test_any_member_twice(document, ascii_only, data):
    """Whichever member is repeated is found, and none where none is."""
    text = json.dumps(document, ensure_ascii=ascii_only)
    assert duplicate(text.encode()) is None
    name = data.draw(st.sampled_from(list(document)))
    repeated = f"{text[:-1]}, {json.dumps(name, ensure_ascii=ascii_only)}: 1}}"
    assert duplicate(repeated.encode()) == name


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs": [], "inputs": []}',
        b'\xef\xbb\xbf{"inputs": [1.5, NaN], "a": {}, "inputs": [], "b": {"c": 1}}',
    ],
)
def test_members_that_make_a_document_ambiguous(text):
    """A document with one of some members twice could be read in two ways."""
    with pytest.raises(InferenceError, match=r"^the request has 'inputs' more than once, which is ambiguous$"):
        refuse_ambiguous(text, ("inputs", "outputs"))


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs": [{"name": "inputs"}], "outputs": []}',
        b'{"inputs": [{"inputs": 1, "inputs": 2}]}',
        b'{"a": 1, "a": 2}',
    ],
)
def test_members_that_make_no_document_ambiguous(text):
    """What lies in other objects is no matter, nor are other members."""
    refuse_ambiguous(text, ("inputs", "outputs"))
