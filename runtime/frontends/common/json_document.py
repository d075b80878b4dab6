# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses the JSON documents that clients send. (pure)

The rules for a document are the same for every endpoint: Triton's depth limit, its NaN and Infinity, and its messages
for a document that cannot be read. Each endpoint checks the members itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import orjson

from pyruntime.runtime.json_types import JsonObject, JsonValue
from pyruntime.utils.errors import Code, InferenceError

# Triton's limit. It makes recursion over nested values safe.
JSON_DEPTH_MAX = 100
# The mark of UTF-8 that editors write, which Triton skips as well.
_MARK = b"\xef\xbb\xbf"
# Documents with NaN take a slow parser, so a large one would block the server.
NON_FINITE_BYTES_MAX = 1 << 20
# The search for duplicate members is slow as well.
DUPLICATE_BYTES_MAX = 1 << 20

# The most values of a document, in objects and lists of any depth: parsing more takes too long, as nothing else runs
# meanwhile. Elements of tensors do not count in large documents; all else that TENSORS_MAX inputs and outputs have is
# less.
VALUES_MAX = 1 << 16
# The bytes of text that are looked at at a time, so that other threads can run in between.
_WINDOW_BYTES = 64 << 10

# A string with its quotes, as the part of a pattern.
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRING = re.compile(STRING, re.DOTALL)
_TOKENS = re.compile(rb'(?:[^"]++|%b)*+' % STRING, re.DOTALL)
# Characters of a string.
_CHARACTERS = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

# A part of orjson's error for a document that is nested deeper than it reads at all: its words depend on its release.
_DEPTH_ERROR = " limit "

# A message shows this many characters of a value that is wrong: enough to find it, too few to fill a log.
SHOWN_LENGTH_MAX = 64

_JSON_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a double",
    type(None): "null",
}


def invalid(message: str) -> InferenceError:
    """The error of a client whose request is wrong."""
    return InferenceError(message, Code.INVALID_ARG)


def json_name(value: object) -> str:
    """The kind of the JSON value `value` in words, with an article."""
    return _JSON_NAMES[type(value)]


def shown(value: object) -> str:
    """The JSON value `value` for a message. A long one is cut; of an object or a list the kind is named."""
    if isinstance(value, (dict, list)):
        return json_name(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_LENGTH_MAX else text[:SHOWN_LENGTH_MAX] + "..."


def parse_document(text: bytes | bytearray, values_max: int = VALUES_MAX) -> JsonObject:
    """The JSON object in `text`, which may begin with the mark of UTF-8. Of members with one name the last counts.

    Raises InferenceError (INVALID_ARG), also for more than `values_max` values.
    """
    if text.startswith(_MARK):
        text = text[len(_MARK) :]
    if not text:
        raise invalid("failed to parse the request JSON buffer: The document is empty. at 0")
    _check_values(text, values_max)
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        document = _parse_non_finite(text, error)
    if type(document) is not dict:
        raise invalid(f"the request must be a JSON object, got {json_name(document)}")
    # Each level has an opening bracket. Counting them is fast, and few documents have enough of them.
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _is_too_deep(document):
        raise _too_deep()
    return document


def _check_values(text: bytes | bytearray, values_max: int) -> None:
    """Refuse a document with too many values before it is parsed. Raises InferenceError (INVALID_ARG)."""
    # A value has two bytes at least, with the comma or the bracket before it.
    if len(text) <= 2 * values_max:
        return
    windows = range(0, len(text), _WINDOW_BYTES)
    # Most documents have few commas and brackets, even if those in strings are counted.
    if sum(_count(text[at : at + _WINDOW_BYTES]) for at in windows) <= values_max:
        return
    values = at = 0
    while at < len(text):
        found = _TOKENS.match(text, at, at + _WINDOW_BYTES)
        assert found is not None  # it matches the empty string as well
        values += _count(_STRING.sub(b"", text[at : found.end()]))
        if values > values_max:
            raise invalid(f"failed to parse the request JSON buffer: it has more than {values_max} values")
        # A string that is longer than a window, or ends behind it.
        at = found.end() if found.end() > at else string_end(text, at + 1) + 1


def _count(text: bytes | bytearray) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def string_end(text: bytes | bytearray, at: int) -> int:
    """Where the closing quote of a string is whose contents begin at `at`; the end of `text` if there is none."""
    while at < len(text):
        found = _CHARACTERS.match(text, at, at + _WINDOW_BYTES)
        assert found is not None  # it matches the empty string as well
        if text[found.end() : found.end() + 1] == b'"':
            return found.end()
        if found.end() == at:
            break  # nothing follows a backslash
        at = found.end()
    return len(text)


def parse_string(text: bytes | bytearray, at: int) -> str:
    """The string whose contents are `text`. It begins `at` bytes into a document, for messages.

    Raises InferenceError (INVALID_ARG).
    """
    try:
        value: str = orjson.loads(b'"%b"' % bytes(text))
    except orjson.JSONDecodeError as error:
        raise invalid(f"failed to parse the request JSON buffer: {error.msg} at {at + error.pos - 1}") from None
    return value


def parse_elements(text: bytes | bytearray, at: int) -> list[JsonValue]:
    """The elements in `text`, which is the inside of a list. It begins `at` bytes into a document, for messages.

    Raises InferenceError (INVALID_ARG).
    """
    enclosed = b"[%b]" % bytes(text)
    try:
        elements = orjson.loads(enclosed)
    except orjson.JSONDecodeError as error:
        elements = _parse_non_finite(enclosed, error, at - 1)
    assert type(elements) is list  # both parsers return one
    return elements


def refuse_ambiguous(text: bytes | bytearray, names: Iterable[str]) -> None:
    """Refuse a document in which one of these members occurs twice: it could be read in two ways.

    Only the document's own members count, not those of objects in it. Raises InferenceError (INVALID_ARG).
    """
    suspects = [name for name in names if text.count(b'"%b"' % name.encode()) > 1]
    if not suspects or len(text) > DUPLICATE_BYTES_MAX:
        return
    own: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        own[:] = (name for name, _ in pairs)  # the document itself comes last

    json.loads(text.decode("utf-8-sig"), object_pairs_hook=look, parse_int=str, parse_float=str)
    for name in suspects:
        if own.count(name) > 1:
            raise invalid(f"the request has '{name}' more than once, which is ambiguous")


def find_duplicate(text: bytes | bytearray, document: JsonObject) -> str | None:
    """The name of a member that some object in `text` has twice, or None; `document` is `text`, parsed.

    Documents above DUPLICATE_BYTES_MAX are not searched: the last member with a name counts, as everywhere else.
    """
    members = len(document) + sum(len(value) for value in document.values() if type(value) is dict)
    # Every member has a colon. If there are no other colons, no member got lost.
    if text.count(b":") == members or len(text) > DUPLICATE_BYTES_MAX:
        return None
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        names = set()
        for name, _ in pairs:
            if name in names:
                found.append(name)
            names.add(name)

    # Numbers do not matter here, so they stay strings.
    json.loads(text.decode("utf-8-sig"), object_pairs_hook=look, parse_int=str, parse_float=str)
    return found[0] if found else None


def _parse_non_finite(text: bytes | bytearray, error: orjson.JSONDecodeError, at: int = 0) -> JsonValue:
    """Parse `text`, which is not JSON, with NaN, Infinity and -Infinity as numbers, as Triton and its clients do."""
    if len(text) <= NON_FINITE_BYTES_MAX and (b"NaN" in text or b"Infinity" in text):
        try:
            document: JsonValue = json.loads(text.decode())
            # The standard library accepts lone surrogates, but no string with one could be sent on.
            json.dumps(document, ensure_ascii=False).encode()
            return document
        except (ValueError, RecursionError):
            pass
    if _DEPTH_ERROR in error.msg:
        raise _too_deep() from None
    raise invalid(f"failed to parse the request JSON buffer: {error.msg} at {at + error.pos}") from None


def _too_deep() -> InferenceError:
    return invalid(f"JSON nesting depth exceeds maximum allowed limit ({JSON_DEPTH_MAX})")


def _is_too_deep(document: JsonObject) -> bool:
    level: list[list[JsonValue] | dict[str, JsonValue]] = [document]
    for _ in range(JSON_DEPTH_MAX):
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) is list or type(child) is dict
        ]
        if not level:
            return False
    return True
