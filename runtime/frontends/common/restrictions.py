# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Maps endpoints to Triton's APIs, and refuses requests to restricted ones. (pure)

Operators restrict APIs by name, over HTTP with --http-restricted-api. The gRPC methods name their API themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest

from pyruntime.runtime.frontends.http.routes import Endpoint, Route
from pyruntime.runtime.settings import Restriction

# Endpoints that are in no API are open to all. The metrics have a port of their own.
API_OF = {
    Endpoint.SERVER_LIVE: "health",
    Endpoint.SERVER_READY: "health",
    Endpoint.MODEL_READY: "health",
    Endpoint.SERVER_METADATA: "metadata",
    Endpoint.MODEL_METADATA: "metadata",
    Endpoint.OPENAPI: "metadata",
    Endpoint.MODEL_CONFIG: "model-config",
    Endpoint.MODEL_STATISTICS: "statistics",
    Endpoint.ALL_STATISTICS: "statistics",
    Endpoint.MODEL_INFER: "inference",
    Endpoint.MODEL_GENERATE: "inference",
    Endpoint.MODEL_GENERATE_STREAM: "inference",
    Endpoint.REPOSITORY_INDEX: "model-repository",
    Endpoint.MODEL_LOAD: "model-repository",
    Endpoint.MODEL_UNLOAD: "model-repository",
    Endpoint.SYSTEM_MEMORY_STATUS: "shared-memory",
    Endpoint.SYSTEM_MEMORY_REGISTER: "shared-memory",
    Endpoint.SYSTEM_MEMORY_UNREGISTER: "shared-memory",
    Endpoint.CUDA_MEMORY_STATUS: "shared-memory",
    Endpoint.CUDA_MEMORY_REGISTER: "shared-memory",
    Endpoint.CUDA_MEMORY_UNREGISTER: "shared-memory",
    Endpoint.TRACE_SETTING: "trace",
    Endpoint.UPDATE_TRACE_SETTING: "trace",
    Endpoint.LOG_SETTINGS: "logging",
    Endpoint.UPDATE_LOG_SETTINGS: "logging",
}


def restrict(route: Route, headers: Mapping[bytes, bytes], restrictions: Mapping[str, Restriction]) -> Route:
    """Return `route` if the client may use it, else a refusal. Names of `headers` are in lower case.

    `restrictions` are by API.
    """
    restriction = restrictions.get(API_OF.get(route.endpoint, ""))
    if restriction is None:
        return route
    if opens(restriction, headers.get(restriction.header.encode())):
        return route
    error = f"This API is restricted, expecting header '{restriction.header}'"
    return Route(Endpoint.REFUSED, status=403, error=error)


def opens(restriction: Restriction, shown: bytes | None) -> bool:
    """Whether `shown`, the client's value of the restriction's header, opens it. None stands for no such header."""
    # The time of the comparison must not tell how much of the value is right.
    return shown is not None and compare_digest(shown, restriction.value.encode())
