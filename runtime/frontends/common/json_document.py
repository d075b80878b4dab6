# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses the JSON documents that clients send. (pure)

The rules for a document are the same for every endpoint: Triton's depth limit, its NaN and Infinity, and its messages
for a document that cannot be read. Each endpoint checks the members itself.
"""

from __future__ import annotations

import json

import orjson

from pyruntime.runtime.json_types import JsonObject, JsonValue
from pyruntime.utils.errors import Code, InferenceError

# Triton's limit. It makes recursion over nested values safe.
JSON_DEPTH_MAX = 100
# Documents with NaN take a slow parser, so a large one would block the server.
NON_FINITE_BYTES_MAX = 1 << 20
# The search for duplicate members is slow as well.
DUPLICATE_BYTES_MAX = 1 << 20

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


def parse_document(text: bytes | bytearray) -> JsonObject:
    """The JSON object in `text`. Of members with one name the last counts. Raises InferenceError (INVALID_ARG)."""
    if not text:
        raise invalid("failed to parse the request JSON buffer: The document is empty. at 0")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        document = _parse_non_finite(text, error)
    if type(document) is not dict:
        raise invalid(f"the request must be a JSON object, got {json_name(document)}")
    # Each level has an opening bracket. Counting them is fast, and few documents have enough of them.
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _is_too_deep(document):
        raise invalid(f"failed to parse the request JSON buffer: it is nested deeper than {JSON_DEPTH_MAX} levels")
    return document


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
    json.loads(text.decode(), object_pairs_hook=look, parse_int=str, parse_float=str)
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
    raise invalid(f"failed to parse the request JSON buffer: {error.msg} at {at + error.pos}") from None


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
