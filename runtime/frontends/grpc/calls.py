# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the call that handles a request, or refuses the request."""

from __future__ import annotations

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.restrictions import opens_call
from pyruntime.runtime.frontends.grpc.call import Call, Connection
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.infer_call import InferCall
from pyruntime.runtime.frontends.grpc.methods import METHODS, STREAMS
from pyruntime.runtime.frontends.grpc.status import STATUS_OF, Status, trailers_only
from pyruntime.runtime.frontends.grpc.stream_call import StreamCall
from pyruntime.runtime.frontends.grpc.stream_infer_call import StreamInferCall
from pyruntime.runtime.frontends.grpc.unary_call import UnaryCall
from pyruntime.utils.errors import InferenceError

_SERVICE = "/inference.GRPCInferenceService"
INFER = f"{_SERVICE}/ModelInfer"
STREAM_INFER = f"{_SERVICE}/ModelStreamInfer"


def begin_call(state: ServerState, connection: Connection, stream: int, head: CallHead) -> Call | bytes:
    """The call on a stream, or the packed response to a refused request."""
    if head.refusal:
        return head.refusal
    restrictions = state.settings.grpc_restricted_protocols
    if restrictions and (refusal := _restricted(state, head)):
        return refusal
    path = head.path
    if path == INFER:
        return InferCall(state, connection, stream, head)
    if path == STREAM_INFER:
        return StreamInferCall(state, connection, stream, head)
    if path in METHODS:
        method = METHODS[path]
        try:
            method.check(state)
        except InferenceError as exc:
            return trailers_only(STATUS_OF[exc.code], exc.message)
        return UnaryCall(state, connection, stream, head, method)
    if path in STREAMS:
        return StreamCall(state, connection, stream, head, STREAMS[path])
    return trailers_only(Status.UNIMPLEMENTED, f"unknown method {path[:80]!r}")


def _restricted(state: ServerState, head: CallHead) -> bytes:
    """The refusal of a call whose API is restricted and whose client lacks the header for it, else b""."""
    if head.path in (INFER, STREAM_INFER):
        api = "inference"
    elif head.path in METHODS:
        api = METHODS[head.path].api
    elif head.path in STREAMS:
        api = STREAMS[head.path].api
    else:
        return b""
    restriction = state.settings.grpc_restricted_protocols.get(api)
    if restriction is None:
        return b""
    if opens_call(restriction, head.metadata):
        return b""
    message = f"This protocol is restricted, expecting header '{restriction.header}'"
    return trailers_only(Status.UNAVAILABLE, message)
