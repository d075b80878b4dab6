# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Maps request lines to endpoints. (pure)

path       := /v2  |  /v2/health/live  |  /v2/health/ready  |  /v2/models/stats  |  /v2/logging  |  /v2/trace/setting
           |  model  |  repository  |  memory  |  /openapi.json
           |  /  |  /docs  |  /page/<file>  |  /page/watch  |  /page/stacks
model      := /v2/models/<name> [/versions/<version>]
              [/ready | /config | /stats | /infer | /generate | /generate_stream]
           |  /v2/models/<name>/trace/setting
repository := /v2/repository[/<repository>]/index  |  /v2/repository[/<repository>]/models/<name>/(load | unload)
memory     := /v2/(systemsharedmemory | cudasharedmemory)
              (/status | /register | /unregister | /region/<name>/(status | register | unregister))

The metrics port has a table of its own: /metrics and /metrics/, and nothing at all at any other path.

A name is decoded only after the path has been taken apart, so nothing that is encoded in it can reach another endpoint;
and it is only ever looked up among the models there are, so `..` in it is as harmless as any unknown name. Query
strings mean nothing here, and neither does the server's own name before a path, which proxies' clients send.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from pyruntime.runtime.repository.versions import parse_version
from pyruntime.runtime.suggestions import similar
from pyruntime.utils.errors import InferenceError

# Far more than any model's name needs.
URL_BYTES_MAX = 4096


class Endpoint(Enum):
    """The endpoint of a request line; REFUSED if there is none."""

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
    MODEL_LOAD = auto()
    MODEL_UNLOAD = auto()
    SYSTEM_MEMORY_STATUS = auto()
    SYSTEM_MEMORY_REGISTER = auto()
    SYSTEM_MEMORY_UNREGISTER = auto()
    CUDA_MEMORY_STATUS = auto()
    CUDA_MEMORY_REGISTER = auto()
    CUDA_MEMORY_UNREGISTER = auto()
    TRACE_SETTING = auto()
    UPDATE_TRACE_SETTING = auto()
    LOG_SETTINGS = auto()
    UPDATE_LOG_SETTINGS = auto()
    OPENAPI = auto()
    PAGE = auto()
    PAGE_WATCH = auto()
    PAGE_STACKS = auto()
    METRICS = auto()
    NOTHING = auto()


class Route(NamedTuple):
    """Where a request goes. `version` is -1 where the URL has none, `model` and `region` are "" where it names none.

    `file` is one of PAGE_FILES, for the page.

    A refused route has the HTTP `status` to answer with and the message for the body, in `error`; "" is for no body.
    `allow` are the methods that the path has, where it has not the request's.
    """

    endpoint: Endpoint
    model: str = ""
    version: int = -1
    status: int = 200
    error: str = ""
    region: str = ""
    file: str = ""
    allow: str = ""


NOT_FOUND = Route(Endpoint.REFUSED, status=404, error="Not Found")
URL_TOO_LONG = Route(Endpoint.REFUSED, status=414, error=f"the URL is longer than {URL_BYTES_MAX} bytes")
METRICS = Route(Endpoint.METRICS)
NOTHING = Route(Endpoint.NOTHING)
REPOSITORY_NAMED = Route(Endpoint.REFUSED, status=501, error="'repository_name' specification is not supported")
SYSTEM_REGION_UNNAMED = Route(
    Endpoint.REFUSED, status=400, error="'region name' is necessary to register system shared memory region"
)
CUDA_REGION_UNNAMED = Route(
    Endpoint.REFUSED, status=400, error="'region name' is necessary to register cuda shared memory region"
)

# The files of the page: two documents, and what they refer to. No text from a client is ever used as the name of a
# file.
PAGE_FILES = (
    "index.html",
    "docs.html",
    "style.css",
    "icon.svg",
    "app.js",
    "docs.js",
    "watch.js",
    "history.js",
    "overview.js",
    "model.js",
    "try.js",
    "snippets.js",
    "log.js",
    "keys.js",
    "parts.js",
    "chart.js",
    "activity.js",
    "timeline.js",
    "schema.js",
    "dom.js",
    "format.js",
    "api.js",
    "form.js",
    "result.js",
    "tensors.js",
    "draw.js",
)

# An absolute URL, as clients of proxies send it, begins with one of these.
_SCHEMES = (b"http://", b"https://")

# By path and method: each path has one or two methods.
_SERVER: dict[bytes, dict[str, Route]] = {
    b"/": {"GET": Route(Endpoint.PAGE, file=PAGE_FILES[0])},
    b"/docs": {"GET": Route(Endpoint.PAGE, file=PAGE_FILES[1])},
    **{b"/page/%b" % file.encode(): {"GET": Route(Endpoint.PAGE, file=file)} for file in PAGE_FILES[2:]},
    b"/page/watch": {"POST": Route(Endpoint.PAGE_WATCH)},
    b"/page/stacks": {"POST": Route(Endpoint.PAGE_STACKS)},
    b"/openapi.json": {"GET": Route(Endpoint.OPENAPI)},
    b"/v2": {"GET": Route(Endpoint.SERVER_METADATA)},
    b"/v2/health/live": {"GET": Route(Endpoint.SERVER_LIVE)},
    b"/v2/health/ready": {"GET": Route(Endpoint.SERVER_READY)},
    b"/v2/models/stats": {"GET": Route(Endpoint.ALL_STATISTICS)},
    b"/v2/repository/index": {"POST": Route(Endpoint.REPOSITORY_INDEX)},
    b"/v2/trace/setting": {"GET": Route(Endpoint.TRACE_SETTING), "POST": Route(Endpoint.UPDATE_TRACE_SETTING)},
    b"/v2/logging": {"GET": Route(Endpoint.LOG_SETTINGS), "POST": Route(Endpoint.UPDATE_LOG_SETTINGS)},
}

_MODEL: dict[tuple[bytes, ...], dict[str, Endpoint]] = {
    (): {"GET": Endpoint.MODEL_METADATA},
    (b"ready",): {"GET": Endpoint.MODEL_READY},
    (b"config",): {"GET": Endpoint.MODEL_CONFIG},
    (b"stats",): {"GET": Endpoint.MODEL_STATISTICS},
    (b"infer",): {"POST": Endpoint.MODEL_INFER},
    (b"generate",): {"POST": Endpoint.MODEL_GENERATE},
    (b"generate_stream",): {"POST": Endpoint.MODEL_GENERATE_STREAM},
    (b"trace", b"setting"): {"GET": Endpoint.TRACE_SETTING, "POST": Endpoint.UPDATE_TRACE_SETTING},
}

_CONTROL = {b"load": Endpoint.MODEL_LOAD, b"unload": Endpoint.MODEL_UNLOAD}

_MEMORY: dict[tuple[bytes, bytes], tuple[str, Endpoint]] = {
    (b"systemsharedmemory", b"status"): ("GET", Endpoint.SYSTEM_MEMORY_STATUS),
    (b"systemsharedmemory", b"register"): ("POST", Endpoint.SYSTEM_MEMORY_REGISTER),
    (b"systemsharedmemory", b"unregister"): ("POST", Endpoint.SYSTEM_MEMORY_UNREGISTER),
    (b"cudasharedmemory", b"status"): ("GET", Endpoint.CUDA_MEMORY_STATUS),
    (b"cudasharedmemory", b"register"): ("POST", Endpoint.CUDA_MEMORY_REGISTER),
    (b"cudasharedmemory", b"unregister"): ("POST", Endpoint.CUDA_MEMORY_UNREGISTER),
}

# What is suggested to clients that ask for something similar; * is a name.
_SHOWN: list[tuple[str, ...]] = [
    *(tuple(path.decode().split("/")[1:]) for path in _SERVER if path.startswith(b"/v2")),
    *(
        ("v2", "models", "*", *version, *map(bytes.decode, rest))
        for version in ((), ("versions", "*"))
        for rest in _MODEL
        if not version or rest[:1] != (b"trace",)
    ),
    *(("v2", "repository", "models", "*", verb.decode()) for verb in _CONTROL),
    *(("v2", memory.decode(), verb.decode()) for memory, verb in _MEMORY),
]
_SEGMENTS_MAX = max(map(len, _SHOWN)) + 1
_WORDS = sorted({word for shown in _SHOWN for word in shown} - {"*"})


def not_allowed(*methods: str) -> Route:
    """The route of a request to a path that has other `methods` only."""
    return Route(Endpoint.REFUSED, status=405, error="Method Not Allowed", allow=", ".join(methods))


def match(method: str, target: bytes) -> Route:
    """The route of a request line with this method and this target, which is the URL as the client sent it."""
    route = _match(method, target)
    # The response has no body, and there are no endpoints for it.
    return route._replace(error="") if method == "HEAD" else route


def match_metrics(method: str, target: bytes) -> Route:
    """The route of a request line at the metrics port, in Triton's order: the method counts at any path."""
    if len(target) > URL_BYTES_MAX:
        return URL_TOO_LONG
    if method != "GET":
        refused = not_allowed("GET")
        return refused._replace(error="") if method == "HEAD" else refused
    return METRICS if target.partition(b"?")[0] in (b"/metrics", b"/metrics/") else NOTHING


def _match(method: str, target: bytes) -> Route:
    if len(target) > URL_BYTES_MAX:
        return URL_TOO_LONG
    path = target.partition(b"?")[0]
    if path[:1] != b"/" and path.lower().startswith(_SCHEMES):
        path = b"/" + path.split(b"/", 3)[3] if path.count(b"/") > 2 else b"/"
    if path in _SERVER:
        return _SERVER[path].get(method) or not_allowed(*_SERVER[path])
    route = _match_names(method, path)
    return _not_found(path) if route is NOT_FOUND else route


def _match_names(method: str, path: bytes) -> Route:
    match path.split(b"/"):
        case [b"", b"v2", b"models", name, *rest] if name:
            return _match_model(method, name, rest)
        case [b"", b"v2", b"repository", *rest]:
            return _match_repository(method, rest)
        case [b"", b"v2", memory, *rest, verb] if (memory, verb) in _MEMORY:
            return _match_memory(method, *_MEMORY[memory, verb], rest, verb)
    return NOT_FOUND


def _not_found(path: bytes) -> Route:
    """The route of an unknown path, with the one that was probably meant, if there is any."""
    is_plain = path.startswith(b"/") and path.isascii() and path.decode().isprintable()
    if not is_plain or path.count(b"/") > _SEGMENTS_MAX:
        return NOT_FOUND
    segments = path.decode().removesuffix("/").split("/")[1:]
    # A segment with what it may stand for. Paths without the protocol's version are usual elsewhere.
    asked = [(segment, *similar(segment, _WORDS, count_max=1)) for segment in segments]
    for given in (asked, [("v2",), *asked]):
        for shown in _SHOWN:
            if len(given) == len(shown) and all(map(_may_mean, given, shown)):
                names = [said[0] if word == "*" else word for said, word in zip(given, shown, strict=True)]
                meant = "/".join(("", *names))
                if meant != path.decode():
                    return NOT_FOUND._replace(error=f"{NOT_FOUND.error}; did you mean {meant}?")
    return NOT_FOUND


def _may_mean(said: tuple[str, ...], word: str) -> bool:
    return word in said or (word == "*" and said[0] not in ("", ".."))


def _match_repository(method: str, rest: list[bytes]) -> Route:
    match rest:
        case [repository, b"index"] if repository:
            return REPOSITORY_NAMED if method == "POST" else not_allowed("POST")
        case [b"models", name, verb] if name and verb in _CONTROL:
            return Route(_CONTROL[verb], _text(name)) if method == "POST" else not_allowed("POST")
        case [repository, b"models", name, verb] if repository and name and verb in _CONTROL:
            return REPOSITORY_NAMED if method == "POST" else not_allowed("POST")
    return NOT_FOUND


def _match_memory(method: str, wanted: str, endpoint: Endpoint, rest: list[bytes], verb: bytes) -> Route:
    match rest:
        case [] if verb == b"register" and method == wanted:
            system = endpoint is Endpoint.SYSTEM_MEMORY_REGISTER
            return SYSTEM_REGION_UNNAMED if system else CUDA_REGION_UNNAMED
        case []:
            region = b""
        case [b"region", region] if region:
            pass
        case _:
            return NOT_FOUND
    return Route(endpoint, region=_text(region)) if method == wanted else not_allowed(wanted)


def _match_model(method: str, name: bytes, rest: list[bytes]) -> Route:
    digits = b""
    if len(rest) > 1 and rest[0] == b"versions":
        digits = rest[1]
        rest = rest[2:]
        if not digits.isdigit():
            return NOT_FOUND
    # Versions have no trace settings of their own.
    if tuple(rest) not in _MODEL or (digits and rest[:1] == [b"trace"]):
        return NOT_FOUND
    endpoints = _MODEL[tuple(rest)]
    endpoint = endpoints.get(method)
    if endpoint is None:
        return not_allowed(*endpoints)
    try:
        # It is not decoded: a version needs no escapes.
        version = parse_version(digits.decode())
    except InferenceError as exc:
        return Route(Endpoint.REFUSED, status=400, error=exc.message)
    return Route(endpoint, _text(name), version)


def _text(segment: bytes) -> str:
    # No model's name has the replacement character, so what is not UTF-8 is an unknown model.
    return unquote_to_bytes(segment).decode(errors="replace")
