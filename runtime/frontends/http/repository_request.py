# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes the bodies of requests to load and unload a model, and for the index. (pure)

load   := {"parameters"?: {"config"?: <configuration as JSON>, "file:<path>": <contents in base64>, ...}}
unload := {"parameters"?: {"unload_dependents"?: <boolean>}}
index  := {"ready"?: <boolean>}

An empty body counts as {}. Other members of an unload are ignored, as in Triton.

The body of a load may hold whole files. Their contents are cut out of it before it is parsed, decoded piece by piece,
and take the place of what they were decoded from: the memory of the body is all that a load needs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator

from pyruntime.runtime.frontends.common.json_document import invalid, json_name, parse_document, shown
from pyruntime.runtime.frontends.http.long_strings import LongStrings
from pyruntime.runtime.json_types import JsonObject
from pyruntime.runtime.repository.override import FILE_PREFIX

# A longer string of a load, in bytes, is cut out. With as many shorter files as a model may have, a load is a short
# document.
LONG_FILE_BYTES = 4 << 10
_BLANKS = b" \t\r\n\v\f"


def decode_load(body: bytes | bytearray) -> tuple[str, dict[str, bytes | memoryview]]:
    """(configuration, files by their names in the request) that replace those of the repository.

    Large files are parts of `body`, which is changed. Raises InferenceError (INVALID_ARG).
    """
    config = ""
    files: dict[str, bytes | memoryview] = {}
    if len(body) > LONG_FILE_BYTES and type(body) is not bytearray:
        body = bytearray(body)
    strings = LongStrings(body, LONG_FILE_BYTES)
    for name, value in _parameters(strings.rest).items():
        if name == "config":
            config = _text(name, strings.restored(value))
        elif name.startswith(FILE_PREFIX):
            files[name] = _contents(name, _text(name, value), strings)
        else:
            raise invalid(f"unrecognized load parameter {shown(name)}.")
    return config, files


def decode_unload(body: bytes | bytearray) -> bool:
    """Whether to unload also the models that only this one needs. Raises InferenceError (INVALID_ARG)."""
    value = _parameters(body).get("unload_dependents", False)
    if type(value) is not bool:
        raise invalid(f"'unload_dependents' must be true or false, got {shown(value)}")
    return value


def decode_index_request(body: bytes) -> bool:
    """Whether the client wants only models that are ready in the index. An empty body says nothing, hence no.

    Raises InferenceError (INVALID_ARG) where the body is not a JSON object or its "ready" is not a boolean.
    """
    ready = parse_document(body).get("ready", False) if body else False
    if type(ready) is not bool:
        raise invalid("Invalid value for 'ready': expected a boolean")
    return ready


def _parameters(body: bytes | bytearray) -> JsonObject:
    parameters = parse_document(body).get("parameters", {}) if body else {}
    if type(parameters) is not dict:
        raise invalid(f"'parameters' must be an object, got {json_name(parameters)}")
    return parameters


def _text(name: str, value: object) -> str:
    if type(value) is not str:
        raise invalid(f"load parameter {shown(name)} must be a string, got {json_name(value)}")
    return value


def _contents(name: str, text: str, strings: LongStrings) -> bytes | memoryview:
    pieces = strings.pieces(text)
    try:
        if pieces is None:
            return b"".join(_decoded([text]))
        return strings.overwrite(text, _decoded(pieces))
    except (binascii.Error, ValueError):
        raise invalid(f"load parameter {shown(name)} must be the file's contents in base64") from None


def _decoded(pieces: Iterable[str]) -> Iterator[bytes]:
    """What is encoded in base64 in the pieces of a text. Raises ValueError if it is not."""
    rest, is_padded = b"", False
    for piece in pieces:
        # Some encoders break lines.
        encoded = rest + piece.encode("ascii").translate(None, _BLANKS)
        if is_padded and encoded:
            raise ValueError("there is something behind the padding")
        whole = len(encoded) - len(encoded) % 4
        is_padded = b"=" in encoded[:whole]
        yield base64.b64decode(encoded[:whole], validate=True)
        rest = encoded[whole:]
    if rest:
        raise ValueError("the last group of characters is not whole")
