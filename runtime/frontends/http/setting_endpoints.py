# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The endpoints that say how requests are traced and what is logged, and change it.

All raise InferenceError: INVALID_ARG for what is wrong with the body, and what those raise whose settings they are.
"""

from __future__ import annotations

from typing import Any

import orjson

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.json_document import invalid, parse_document, shown
from pyruntime.runtime.frontends.http.routes import Endpoint, Route


def trace_settings(state: ServerState, route: Route, body: bytes) -> bytes:
    """Of one model, or of all for ""."""
    return orjson.dumps(state.tracer.settings(route.model))


def update_trace_settings(state: ServerState, route: Route, body: bytes) -> bytes:
    """Change what is named in the body, to nothing where it is null there; all settings, as they are then."""
    document = parse_document(body)
    state.tracer.update(route.model, {name: _trace_value(name, value) for name, value in document.items()})
    return trace_settings(state, route, body)


def log_settings(state: ServerState, route: Route, body: bytes) -> bytes:
    """Of the whole server."""
    return orjson.dumps(state.log_settings.current())


def update_log_settings(state: ServerState, route: Route, body: bytes) -> bytes:
    """Change what is named in the body, unless it is null there; all settings, as they are then."""
    state.log_settings.update({name: value for name, value in parse_document(body).items() if value is not None})
    return log_settings(state, route, body)


def _trace_value(name: str, value: Any) -> str | list[str] | None:
    if value is None or type(value) is str:
        return value
    if type(value) is list and all(type(each) is str for each in value):
        return value
    raise invalid(f"trace setting {shown(name)} must be a string, a list of strings or null, got {shown(value)}")


ANSWERS = {
    Endpoint.TRACE_SETTING: trace_settings,
    Endpoint.UPDATE_TRACE_SETTING: update_trace_settings,
    Endpoint.LOG_SETTINGS: log_settings,
    Endpoint.UPDATE_LOG_SETTINGS: update_log_settings,
}
