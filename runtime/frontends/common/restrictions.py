# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Maps endpoints to Triton's APIs, refuses requests to restricted ones, and says what the page may see. (pure)

Operators restrict APIs by name, over HTTP with --http-restricted-api. The gRPC methods name their API themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hmac import compare_digest
from ipaddress import ip_address
from typing import NamedTuple

from pyruntime.runtime.frontends.common.origins import HTTP_ORIGINS, Origins
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

# Endpoints of the page, which answer with as much as the request may see: see Access.
OWN_ACCESS = (Endpoint.PAGE_WATCH, Endpoint.PAGE_STACKS)


# Proxies add one of these to what they pass on.
_FORWARDING = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")
# The names that a machine has for itself, as `Host` has them.
_OWN_NAME = re.compile(rb"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?", re.IGNORECASE)


class Access(NamedTuple):
    """What a request may see besides the one endpoint that it names.

    `closed` has the header that opens each restricted API, for those that the request does not open. `opens_log` says
    that the operator restricts `logging` and the request has the header. `is_direct` says that `logging` is open to all
    and the head looks like that of a client on the server's own machine: it calls the server by a name that machines
    have for themselves, as does the page that the request comes from, and no proxy is named. Only together with the
    address of the client does this mean anything: the client writes the head.
    """

    closed: Mapping[str, str] = {}
    opens_log: bool = False
    is_direct: bool = False


def access_of(
    headers: Mapping[bytes, bytes], restrictions: Mapping[str, Restriction], origins: Origins = HTTP_ORIGINS
) -> Access:
    """The access of a request with these headers, whose names are in lower case. `restrictions` are by API."""
    closed = {
        api: restriction.header
        for api, restriction in restrictions.items()
        if not opens(restriction, headers.get(restriction.header.encode()))
    }
    if "logging" in restrictions:
        return Access(closed, opens_log="logging" not in closed)
    return Access(closed, is_direct=_is_direct(headers, origins))


def _is_direct(headers: Mapping[bytes, bytes], origins: Origins) -> bool:
    if any(name in headers for name in _FORWARDING):
        return False
    if _OWN_NAME.fullmatch(headers.get(b"host", b"")) is None:
        return False  # a site whose name leads to this machine would be the page's own site for a browser
    site = headers.get(b"sec-fetch-site")
    if site is not None:  # browsers set it, no page can, and it says what `Origin` says, which may be hidden as `null`
        return site == b"same-origin"
    return origins.has_called(headers)


def is_loopback(peer: object) -> bool:
    """Whether the address of a client, as the socket has it, is one that only its own machine can have.

    False for a client of a UNIX socket: that is most often a proxy.
    """
    if not isinstance(peer, tuple) or not peer:
        return False
    address = ip_address(str(peer[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


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


def opens_call(restriction: Restriction, metadata: Mapping[str, str]) -> bool:
    """Whether the metadata of a gRPC call, whose names are in lower case, opens the restriction."""
    shown = metadata.get(restriction.header)
    return opens(restriction, None if shown is None else shown.encode("latin-1"))


def opens(restriction: Restriction, shown: bytes | None) -> bool:
    """Whether `shown`, the client's value of the restriction's header, opens it. None stands for no such header."""
    # The time of the comparison must not tell how much of the value is right.
    return shown is not None and compare_digest(shown, restriction.value.encode())
