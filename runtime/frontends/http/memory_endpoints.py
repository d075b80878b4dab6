# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The endpoints about the shared memory of clients: a route and a body in, a JSON body out.

All raise InferenceError: INVALID_ARG for a wrong body, and the errors of the state's `client_memory`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Coroutine

import orjson

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.json_document import invalid, json_name, parse_document, shown
from pyruntime.runtime.frontends.common.request_parameters import UINT64_MAX
from pyruntime.runtime.frontends.http.routes import Endpoint, Route
from pyruntime.runtime.json_types import JsonObject, JsonValue

# Triton's message for an invalid CUDA handle.
_BAD_HANDLE = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"


def system_status(state: ServerState, route: Route, body: bytes) -> bytes:
    """One region, or all of them for ""."""
    rows = state.client_memory.status(route.region)
    return orjson.dumps(
        [{"name": row.name, "key": row.key, "offset": row.offset, "byte_size": row.byte_size} for row in rows]
    )


def register_system(state: ServerState, route: Route, body: bytes) -> bytes:
    """Some bytes of an object that the client made; from its beginning on, unless an offset is given."""
    document = parse_document(body)
    key = _required(document, "key")
    if type(key) is not str:
        raise invalid(f"'key' must be a string, got {json_name(key)}")
    offset = _unsigned("offset", document["offset"]) if "offset" in document else 0
    state.client_memory.register(route.region, key, offset, _unsigned("byte_size", _required(document, "byte_size")))
    return b""


def cuda_status(state: ServerState, route: Route, body: bytes) -> bytes:
    """One region, or all of them for ""."""
    rows = state.client_memory.status_cuda(route.region)
    return orjson.dumps([{"name": row.name, "device_id": row.device_id, "byte_size": row.byte_size} for row in rows])


def register_cuda(state: ServerState, route: Route, body: bytes) -> Coroutine[object, object, None]:
    """Memory of a device that the client allocated. The work is not done at once."""
    document = parse_document(body)
    handle = _handle(_required(document, "raw_handle"))
    device_id = _unsigned("device_id", _required(document, "device_id"))
    byte_size = _unsigned("byte_size", _required(document, "byte_size"))
    return state.client_memory.register_cuda(route.region, handle, device_id, byte_size)


def unregister_cuda(state: ServerState, route: Route, body: bytes) -> Coroutine[object, object, None]:
    """One region, or all of them for "". The work is not done at once."""
    return state.client_memory.unregister_cuda(route.region)


def _required(document: JsonObject, member: str) -> JsonValue:
    if member not in document:
        raise invalid(f"Shared memory register request has no '{member}' field")
    return document[member]


def _unsigned(member: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= UINT64_MAX:
        raise invalid(f"'{member}' must be an integer from 0 to {UINT64_MAX}, got {shown(value)}")
    return value


def _handle(value: object) -> bytes:
    text = value.get("b64") if type(value) is dict else None
    if type(text) is not str:
        raise invalid("'raw_handle' must be an object whose 'b64' is a string")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(_BAD_HANDLE) from None


ANSWERS = {
    Endpoint.SYSTEM_MEMORY_STATUS: system_status,
    Endpoint.SYSTEM_MEMORY_REGISTER: register_system,
    Endpoint.CUDA_MEMORY_STATUS: cuda_status,
}
