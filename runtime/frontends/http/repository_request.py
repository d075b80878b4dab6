# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes the bodies of requests to load and unload a model, and for the index. (pure)

load   := {"parameters"?: {"config"?: <configuration as JSON>, "file:<path>": <contents in base64>, ...}}
unload := {"parameters"?: {"unload_dependents"?: <boolean>}}
index  := {"ready"?: <boolean>}

An empty body counts as {}. Other members of an unload are ignored, as in Triton.
"""

from __future__ import annotations

import base64
import binascii

from pyruntime.runtime.frontends.common.json_document import invalid, json_name, parse_document, shown
from pyruntime.runtime.json_types import JsonObject
from pyruntime.runtime.repository.override import FILE_PREFIX

# Contents of files are decoded in pieces of this size, in bytes, so that a thread that does so lets others run. It is a
# multiple of 4: the pieces end between groups of characters.
BASE64_BYTES = 1 << 20
_BLANKS = b" \t\r\n\v\f"


def decode_load(body: bytes | bytearray) -> tuple[str, dict[str, bytes]]:
    """(configuration, files by their names in the request) that replace those of the repository.

    Raises InferenceError (INVALID_ARG).
    """
    config, files = "", {}
    for name, value in _parameters(body).items():
        if name == "config":
            config = _text(name, value)
        elif name.startswith(FILE_PREFIX):
            files[name] = _contents(name, _text(name, value))
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


def _contents(name: str, text: str) -> bytes:
    try:
        # Some encoders break lines.
        encoded = text.encode("ascii").translate(None, _BLANKS)
        parts = [encoded[at : at + BASE64_BYTES] for at in range(0, len(encoded), BASE64_BYTES)]
        if any(b"=" in part for part in parts[:-1]):
            raise ValueError("there is something behind the padding")
        return b"".join(base64.b64decode(part, validate=True) for part in parts)
    except (binascii.Error, ValueError):
        raise invalid(f"load parameter {shown(name)} must be the file's contents in base64") from None
