# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes the responses to a generate request. (pure)

document := {"id"?, "model_name", "model_version", <parameter>*, <output>*}
event    := "data: " document LF LF

A document has no line breaks, so that it is one line of an event.
"""

from __future__ import annotations

import orjson

from pyruntime.runtime.frontends.http.json_tensors import unpack
from pyruntime.runtime.requests.types import InferResponse


def encode_generate(response: InferResponse) -> bytes:
    """The document of a response: each output is a list, or a bare value if it has one element only.

    Parameters stand beside the outputs, and give way to all else of their names. Raises InferenceError as `unpack`.
    """
    members: dict[str, object] = {"id": response.id} if response.id else {}
    members |= {"model_name": response.model_name, "model_version": str(response.model_version)}
    members |= {name: value for name, value in response.parameters.items() if name not in members}
    for output in response.outputs:
        members[output.name] = unpack(output, unwrap=True)
    return orjson.dumps(members)


def event(document: bytes) -> bytes:
    """The server-sent event whose data is `document`."""
    return b"data: %b\n\n" % document
