# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every HTTP endpoint that answers at once: a route and a body in, a JSON body out."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from pyruntime.runtime.app import documents
from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.http import memory_endpoints, setting_endpoints
from pyruntime.runtime.frontends.http.repository_request import decode_index_request
from pyruntime.runtime.frontends.http.routes import Endpoint, Route


def _nothing(state: ServerState, route: Route, body: bytes) -> bytes:
    return b""


def _server_metadata(state: ServerState, route: Route, body: bytes) -> bytes:
    return documents.server_metadata(state.settings.server_id, state.version)


def _model_metadata(state: ServerState, route: Route, body: bytes) -> bytes:
    model = state.resolve(route.model, route.version)
    return documents.model_metadata(model.spec, state.table.ready_versions(route.model))


def _model_config(state: ServerState, route: Route, body: bytes) -> bytes:
    return state.resolve(route.model, route.version).spec.json


def _statistics(state: ServerState, route: Route, body: bytes) -> bytes:
    return orjson.dumps({"model_stats": state.statistics(route.model, route.version)})


def _index(state: ServerState, route: Route, body: bytes) -> bytes:
    return documents.repository_index(state.index(decode_index_request(body)))


# The body of the response, which is a success. Each raises InferenceError. All other endpoints have exchanges of their
# own.
ANSWERS: dict[Endpoint, Callable[[ServerState, Route, bytes], bytes]] = {
    Endpoint.SERVER_METADATA: _server_metadata,
    Endpoint.SERVER_LIVE: _nothing,
    Endpoint.NOTHING: _nothing,
    Endpoint.MODEL_METADATA: _model_metadata,
    Endpoint.MODEL_CONFIG: _model_config,
    Endpoint.MODEL_STATISTICS: _statistics,
    Endpoint.ALL_STATISTICS: _statistics,
    Endpoint.REPOSITORY_INDEX: _index,
    **memory_endpoints.ANSWERS,
    **setting_endpoints.ANSWERS,
}
