# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the response to an inference by native code: head, document and contents at once. (pure)"""

from __future__ import annotations

from pyruntime.runtime.frontends.http.kserve_request import OutputOptions
from pyruntime.runtime.frontends.http.kserve_response import encode_parameters
from pyruntime.runtime.native.plain import write_answer
from pyruntime.runtime.requests.types import InferResponse

# The parts of a response, the length of its body, and the length of the document in that, 0 where nothing follows it.
PlainAnswer = tuple[list[bytes | memoryview], int, int]


def plain_answer(response: InferResponse, options: OutputOptions, lines: bytes, joined_max: int) -> PlainAnswer | None:
    """The response with these `lines` in its head besides the usual ones; None for one that is not plain.

    If the body has no more than `joined_max` bytes, all of it is one part, which does not refer to the response's
    memory.
    """
    if options.classes:
        return None
    return write_answer(response, encode_parameters(response), options, lines, joined_max)
