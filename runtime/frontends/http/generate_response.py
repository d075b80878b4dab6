# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes the responses to a generate request. (pure)

document := {"id"?, "model_name", "model_version", <parameter>*, <output>*}
event    := "data: " document LF LF

A document has no line breaks, so that it is one line of an event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import orjson

from pyruntime.runtime.frontends.http.json_pieces import ELEMENT, ELEMENTS, check_elements, pieces
from pyruntime.runtime.frontends.http.json_tensors import unpack
from pyruntime.runtime.frontends.http.large_answer import Body
from pyruntime.runtime.requests.types import InferResponse, OutputTensor


def encode_generate(response: InferResponse) -> bytes:
    """The document of a response: each output is a list, or a bare value if it has one element only.

    Parameters stand beside the outputs, and give way to all else of their names. Raises InferenceError as `unpack`.
    """
    return orjson.dumps(_members(response, lambda output: unpack(output, unwrap=True)))


def large_generate(response: InferResponse, is_stopped: Callable[[], bool]) -> Body:
    """The same for a large one, to be made piece by piece: see large_answer.large_body."""

    def write(output: OutputTensor) -> object:
        check_elements(output, is_stopped)
        return ELEMENT if math.prod(output.shape) == 1 else ELEMENTS

    members = _members(response, write)
    outputs = {output.name: output for output in response.outputs}
    return Body(pieces(orjson.dumps(members), [outputs[name] for name in members if name in outputs]))


def _members(response: InferResponse, write: Callable[[OutputTensor], object]) -> dict[str, object]:
    members: dict[str, object] = {"id": response.id} if response.id else {}
    members |= {"model_name": response.model_name, "model_version": str(response.model_version)}
    members |= {name: value for name, value in response.parameters.items() if name not in members}
    for output in response.outputs:
        members[output.name] = write(output)
    return members


def event(document: bytes) -> bytes:
    """The server-sent event whose data is `document`."""
    return b"data: %b\n\n" % document


def event_pieces(document: Iterator[bytes]) -> Iterator[bytes]:
    """The same for a document in pieces."""
    begin = b"data: "
    for piece in document:
        yield begin + piece
        begin = b""
    yield b"\n\n"
