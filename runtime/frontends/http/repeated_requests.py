# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP requests that a model's response cache may answer by their bytes: see caching/answers.py.

Such an answer is a whole response. It depends on the model, on the body, on how long the document in it is, and on the
encoding of the response. Whatever else may be in a head and makes a difference has the request decoded.
"""

from __future__ import annotations

from collections.abc import Hashable

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.caching.answers import REQUEST_BYTES_MAX
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.utils.errors import InferenceError


def repeatable(state: ServerState, head: Head, body: bytes | bytearray) -> Hashable | None:
    """All that the answer to a request depends on besides the model; None if it depends on more.

    A trace has the whole way of a request. Forwarded headers may be refused, and a load report, or the announcement
    that the connection ends, is not in each response. `body` is decompressed.
    """
    if len(body) > REQUEST_BYTES_MAX or not head.keep_alive or state.tracer.active:
        return None
    if head.forwarded or head.load_format:
        return None
    return head.header_length, head.response_encoding, bytes(body)


def find_answer(state: ServerState, head: Head, body: bytes) -> bytes | None:
    """The answer to a request that arrives with a head that had a prepared answer before; None if there is none.

    The body came as a whole, and not compressed. An answer must be sent: it counts as a hit.
    """
    if state.tracer.active or state.log_settings.verbose:
        return None
    try:
        model = state.resolve(head.route.model, head.route.version)
    except InferenceError:
        return None  # an exchange reports it
    if model.answers is None:
        return None
    return model.answers.find((head.header_length, head.response_encoding, body))
