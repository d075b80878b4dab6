# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every HTTP endpoint that answers at once: a route and a body in, a JSON body out.

All raise InferenceError: INVALID_ARG for a wrong body, and the errors of the part of the server that they call.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from pyruntime.runtime.app import documents
from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.json_document import invalid, parse_document, shown
from pyruntime.runtime.frontends.http import memory_endpoints
from pyruntime.runtime.frontends.http.repository_request import decode_index_request
from pyruntime.runtime.frontends.http.routes import Endpoint, Route
from pyruntime.runtime.json_types import JsonValue


def _nothing(state: ServerState, route: Route, body: bytes) -> bytes:
    return b""


def _server_metadata(state: ServerState, route: Route, body: bytes) -> bytes:
    return documents.server_metadata(state.settings.server_id, state.version)


def _model_metadata(state: ServerState, route: Route, body: bytes) -> bytes:
    model = state.resolve(route.model, route.version)
    return documents.model_metadata(model.spec, state.table.ready_versions(route.model, route.version))


def _model_config(state: ServerState, route: Route, body: bytes) -> bytes:
    return state.resolve(route.model, route.version).spec.json


def _index(state: ServerState, route: Route, body: bytes) -> bytes:
    return documents.repository_index(state.index(decode_index_request(body)))


def _trace_settings(state: ServerState, route: Route, body: bytes) -> bytes:
    """The settings of one model, or of all for ""."""
    return orjson.dumps(state.tracer.settings(route.model))


def _update_trace_settings(state: ServerState, route: Route, body: bytes) -> bytes:
    """Change the settings in the body; null clears one. Returns all settings."""
    document = parse_document(body)
    state.tracer.update(route.model, {name: _trace_value(name, value) for name, value in document.items()})
    return _trace_settings(state, route, body)


def _log_settings(state: ServerState, route: Route, body: bytes) -> bytes:
    """The settings of the whole server."""
    return orjson.dumps(state.log_settings.current())


def _update_log_settings(state: ServerState, route: Route, body: bytes) -> bytes:
    """Change the settings in the body, except those that are null there. Returns all settings."""
    state.log_settings.update({name: value for name, value in parse_document(body).items() if value is not None})
    return _log_settings(state, route, body)


def _trace_value(name: str, value: JsonValue) -> str | list[str] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [each for each in value if isinstance(each, str)]
        if len(texts) == len(value):
            return texts
    raise invalid(f"trace setting {shown(name)} must be a string, a list of strings or null, got {shown(value)}")


# Each returns the body of a successful response, or raises InferenceError. All other endpoints have own exchanges.
ANSWERS: dict[Endpoint, Callable[[ServerState, Route, bytes], bytes]] = {
    Endpoint.SERVER_METADATA: _server_metadata,
    Endpoint.SERVER_LIVE: _nothing,
    Endpoint.NOTHING: _nothing,
    Endpoint.MODEL_METADATA: _model_metadata,
    Endpoint.MODEL_CONFIG: _model_config,
    Endpoint.REPOSITORY_INDEX: _index,
    **memory_endpoints.ANSWERS,
    Endpoint.TRACE_SETTING: _trace_settings,
    Endpoint.UPDATE_TRACE_SETTING: _update_trace_settings,
    Endpoint.LOG_SETTINGS: _log_settings,
    Endpoint.UPDATE_LOG_SETTINGS: _update_log_settings,
}
