# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which endpoint a request line asks for. (pure)

path  := /v2  |  /v2/health/live  |  /v2/health/ready  |  /v2/models/stats  |  model  |  index
model := /v2/models/<name> [/versions/<version>] [/ready | /config | /stats | /infer | /generate | /generate_stream]
index := /v2/repository[/<repository>]/index

The metrics port has a table of its own: /metrics and /metrics/, and nothing at all at any other path.

A name is decoded only after the path has been taken apart, so nothing that is encoded in it can reach another endpoint;
and it is only ever looked up among the models there are, so `..` in it is as harmless as any unknown name. Query
strings mean nothing here.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

# Far more than any model's name needs.
URL_BYTES_MAX = 4096

# Routes remembered: a client asks for the same few over and over. With the longest URLs this is 4 MiB.
ROUTES_KEPT_MAX = 1024

# Triton keeps versions in signed 64-bit integers, which have at most 19 digits.
VERSION_MAX = 2**63 - 1
VERSION_DIGITS_MAX = 19


class Endpoint(Enum):
    """What a request line asks for; REFUSED where there is no such thing."""

    REFUSED = auto()
    SERVER_METADATA = auto()
    SERVER_LIVE = auto()
    SERVER_READY = auto()
    MODEL_METADATA = auto()
    MODEL_READY = auto()
    MODEL_CONFIG = auto()
    MODEL_STATISTICS = auto()
    ALL_STATISTICS = auto()
    MODEL_INFER = auto()
    MODEL_GENERATE = auto()
    MODEL_GENERATE_STREAM = auto()
    REPOSITORY_INDEX = auto()
    METRICS = auto()
    NOTHING = auto()


class Route(NamedTuple):
    """Where a request goes. `version` is -1 where the URL has none.

    A refused route has the HTTP `status` to answer with and the message for the body, in `error`.
    """

    endpoint: Endpoint
    model: str = ""
    version: int = -1
    status: int = 200
    error: str = ""


NOT_FOUND = Route(Endpoint.REFUSED, status=404, error="Not Found")
METHOD_NOT_ALLOWED = Route(Endpoint.REFUSED, status=405, error="Method Not Allowed")
URL_TOO_LONG = Route(Endpoint.REFUSED, status=414, error=f"the URL is longer than {URL_BYTES_MAX} bytes")
METRICS = Route(Endpoint.METRICS)
NOTHING = Route(Endpoint.NOTHING)
REPOSITORY_NAMED = Route(Endpoint.REFUSED, status=501, error="'repository_name' specification is not supported")

_SERVER = {
    b"/v2": ("GET", Route(Endpoint.SERVER_METADATA)),
    b"/v2/health/live": ("GET", Route(Endpoint.SERVER_LIVE)),
    b"/v2/health/ready": ("GET", Route(Endpoint.SERVER_READY)),
    b"/v2/models/stats": ("GET", Route(Endpoint.ALL_STATISTICS)),
    b"/v2/repository/index": ("POST", Route(Endpoint.REPOSITORY_INDEX)),
}

_MODEL = {
    (): ("GET", Endpoint.MODEL_METADATA),
    (b"ready",): ("GET", Endpoint.MODEL_READY),
    (b"config",): ("GET", Endpoint.MODEL_CONFIG),
    (b"stats",): ("GET", Endpoint.MODEL_STATISTICS),
    (b"infer",): ("POST", Endpoint.MODEL_INFER),
    (b"generate",): ("POST", Endpoint.MODEL_GENERATE),
    (b"generate_stream",): ("POST", Endpoint.MODEL_GENERATE_STREAM),
}

_routes: dict[tuple[str, bytes], Route] = {}


def match(method: str, target: bytes) -> Route:
    """The route of a request line with this method and this target, which is the URL as the client sent it."""
    route = _routes.get((method, target))
    if route is None:
        route = _match(method, target)
        # Refused ones are not remembered: there is no end to them.
        if route.endpoint is not Endpoint.REFUSED:
            if len(_routes) >= ROUTES_KEPT_MAX:
                _routes.clear()
            _routes[method, target] = route
    return route


def match_metrics(method: str, target: bytes) -> Route:
    """The route of a request line at the metrics port, in Triton's order: the method counts at any path."""
    if len(target) > URL_BYTES_MAX:
        return URL_TOO_LONG
    if method != "GET":
        return METHOD_NOT_ALLOWED
    return METRICS if target.partition(b"?")[0] in (b"/metrics", b"/metrics/") else NOTHING


def _match(method: str, target: bytes) -> Route:
    if len(target) > URL_BYTES_MAX:
        return URL_TOO_LONG
    path = target.partition(b"?")[0]
    if path in _SERVER:
        verb, route = _SERVER[path]
        return route if method == verb else METHOD_NOT_ALLOWED
    segments = path.split(b"/")
    if segments[:3] == [b"", b"v2", b"models"] and len(segments) > 3 and segments[3]:
        return _match_model(method, segments[3], segments[4:])
    if segments[:3] == [b"", b"v2", b"repository"] and len(segments) == 5 and segments[3] and segments[4] == b"index":
        return REPOSITORY_NAMED if method == "POST" else METHOD_NOT_ALLOWED
    return NOT_FOUND


def _match_model(method: str, name: bytes, rest: list[bytes]) -> Route:
    version = -1
    digits = b""
    if len(rest) > 1 and rest[0] == b"versions":
        digits = rest[1]
        version = _version(digits)
        rest = rest[2:]
        if not digits:
            return NOT_FOUND
    if tuple(rest) not in _MODEL:
        return NOT_FOUND
    verb, endpoint = _MODEL[tuple(rest)]
    if method != verb:
        return METHOD_NOT_ALLOWED
    if version == 0:
        return _bad_version(digits)
    return Route(endpoint, _text(name), version)


def _version(digits: bytes) -> int:
    """The version, 0 where `digits` is not an integer above 0."""
    if not digits.isdigit() or len(digits) > VERSION_DIGITS_MAX:
        return 0
    version = int(digits)
    return version if version <= VERSION_MAX else 0


def _bad_version(digits: bytes) -> Route:
    error = (
        f"failed to get model version from specified version string '{_text(digits)}', "
        "version should be an integral value > 0"
    )
    return Route(Endpoint.REFUSED, status=400, error=error)


def _text(segment: bytes) -> str:
    # No model's name has the replacement character, so what is not UTF-8 is an unknown model.
    return unquote_to_bytes(segment).decode(errors="replace")
