# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the response to an inference whose outputs are all binary: head, document and contents at once. (pure)"""

from __future__ import annotations

import orjson

from pyruntime.runtime.frontends.http.kserve_response import encode_binary
from pyruntime.runtime.frontends.http.response_head import infer_head
from pyruntime.runtime.native.plain import write_answer
from pyruntime.runtime.requests.types import InferResponse

# The parts of a response, the length of its body, and the length of the document in that, 0 where nothing follows it.
BinaryAnswer = tuple[list[bytes | memoryview], int, int]


def binary_answer(response: InferResponse, lines: bytes, joined_max: int) -> BinaryAnswer:
    """The response with these `lines` in its head besides the usual ones.

    If the body has no more than `joined_max` bytes, all of it is one part, which does not refer to the response's
    memory.
    """
    parameters = response.parameters
    written = write_answer(
        response.id,
        response.model_name,
        response.model_version,
        response.outputs,
        orjson.dumps(parameters) if parameters else b"",
        lines,
        joined_max,
    )
    return reference_answer(response, lines, joined_max) if written is None else written


def reference_answer(response: InferResponse, lines: bytes, joined_max: int) -> BinaryAnswer:
    """The same, for texts that native code leaves to the encoder of all responses."""
    document, contents, length = encode_binary(response)
    lead = len(document) if contents else 0
    begin = infer_head(lead, length, lines) + document
    parts: list[bytes | memoryview] = [begin, *contents]
    return [b"".join(parts)] if length <= joined_max else parts, length, lead
