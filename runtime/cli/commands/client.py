# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An HTTP client for a server. Each failure is a CommandError, whose message is one sentence for the user."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TypedDict, cast
from urllib.parse import quote, urlsplit

from pyruntime.runtime.json_types import JsonObject, JsonValue
from pyruntime.runtime.suggestions import did_you_mean
from pyruntime.utils.errors import PyruntimeError

# The time limit for a connection, in seconds. Most responses have none: a model may take any time.
CONNECT_S_MAX = 10.0
# The part of an invalid response that an error message shows, in characters.
SHOWN_LENGTH_MAX = 200

_EVENT = b"data:"
# RFC 9110, section 5: a token, and visible characters.
_HEADER = re.compile(r"([-!#$%&'*+.^_`|~0-9A-Za-z]+)\s*[:=]\s*([ -~]*)")


class CommandError(PyruntimeError):
    """A command failed; the message is one sentence, `status` the exit status of the process."""

    status = 1


class Refused(CommandError):
    """The server refused the request, or its response is invalid."""

    status = 1


class WrongUsage(CommandError):
    """The command line is invalid."""

    status = 2


class Unreachable(CommandError):
    """No server answers, or it closed the connection."""

    status = 3


class TensorMetadata(TypedDict):
    """An input or output in a model's metadata."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(TypedDict):
    """A model's metadata, as far as commands read it."""

    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerClient:
    """The server at a URL such as http://localhost:8000. Raises WrongUsage for an invalid URL or header.

    `headers` are sent with every request, each as `<name>: <value>`. A response may take `response_s_max` seconds, and
    any time for None.

    All methods raise CommandError. They check that a response has the expected members, and trust their types.
    """

    def __init__(self, url: str, headers: Iterable[str] = (), response_s_max: float | None = None) -> None:
        self._response_s_max = response_s_max
        self._headers = dict(_header(text) for text in headers)
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise WrongUsage(f"--url={url} has no port that could be one") from exc
        if parts.scheme not in ("http", "https") or not host:
            raise WrongUsage(f"--url must be like http://localhost:8000, not {url!r}")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._secure = parts.scheme == "https"
        self._host, self._port, self._path = host, port, parts.path.rstrip("/")

    def get(self, path: str, *members: str) -> JsonObject:
        """The JSON object that a GET returns. It has all of `members`."""
        document = self._parsed(self.request("GET", path)[1])
        if not isinstance(document, dict) or not all(member in document for member in members):
            raise self._not_a_server()
        return document

    def metadata(self, path: str) -> ModelMetadata:
        """The metadata of the model, or the version of one, at `path`."""
        return cast("ModelMetadata", self.get(path, "inputs", "outputs"))

    def post(self, path: str, document: JsonValue) -> JsonValue:
        """The JSON value that a POST of a JSON document returns; None for an empty response."""
        body = self.request("POST", path, json.dumps(document).encode())[1]
        return self._parsed(body) if body else None

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """The headers, with lower-case names, and the body of a successful response."""
        with self._response(method, path, body, headers) as response:
            content = response.read()
            if response.status != 200:
                raise Refused(_reason(response, content))
            return {name.lower(): value for name, value in response.headers.items()}, content

    def stream(self, path: str, document: JsonValue) -> Iterator[JsonValue]:
        """The events of a stream, parsed, as they arrive."""
        with self._response("POST", path, json.dumps(document).encode(), None) as response:
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise Refused(_reason(response, response.read()))
            for line in response:
                if line.startswith(_EVENT):
                    yield self._parsed(line[len(_EVENT) :])

    def index(self) -> list[dict[str, str]]:
        """The repository index."""
        rows = self.post("/v2/repository/index", {})
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "name" in row for row in rows):
            raise self._not_a_server()
        return cast("list[dict[str, str]]", rows)

    @contextmanager
    def about(self, model: str) -> Iterator[None]:
        """For requests about a model: if the server has no such model, a refusal suggests similar names."""
        try:
            yield
        except Refused as exc:
            with suppress(CommandError):
                names = {row["name"] for row in self.index()}
                if model not in names:
                    exc.args = (f"{exc}{did_you_mean(model, names)}",)
            raise

    @contextmanager
    def _response(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> Iterator[HTTPResponse]:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S_MAX)
        try:
            try:
                connection.connect()
            except ssl.SSLCertVerificationError as exc:
                raise Unreachable(f"{self.url} shows a certificate that is not trusted: {exc.verify_message}") from exc
            except ssl.SSLError as exc:
                raise Unreachable(f"there is no TLS at {self.url}") from exc
            except OSError as exc:
                raise Unreachable(f"no server answers at {self.url}: {exc.strerror or exc}") from exc
            connection.sock.settimeout(self._response_s_max)
            try:
                connection.request(method, self._path + path, body, {**self._headers, **(headers or {})})
                yield connection.getresponse()
            except TimeoutError as exc:
                raise Unreachable(f"{self.url} has not answered for {self._response_s_max:g} s") from exc
            except (OSError, HTTPException) as exc:
                raise Unreachable(f"{self.url} does not answer as a server does, or hung up") from exc
        finally:
            connection.close()

    def _parsed(self, body: bytes) -> JsonValue:
        try:
            value: JsonValue = json.loads(body)
        except ValueError as exc:
            raise self._not_a_server() from exc
        return value

    def _not_a_server(self) -> Refused:
        return Refused(f"{self.url} does not answer as a server does; is it the port of its HTTP?")


def model_path(name: str) -> str:
    """The path of a model."""
    return f"/v2/models/{quote(name, safe='')}"


def control_path(name: str, action: str) -> str:
    """The path that loads or unloads a model."""
    return f"/v2/repository/models/{quote(name, safe='')}/{action}"


def _header(text: str) -> tuple[str, str]:
    """The name and the value in `<name>: <value>`, or `<name>=<value>`. Raises WrongUsage."""
    found = _HEADER.fullmatch(text)
    if found is None:
        raise WrongUsage(f"--header must be like 'name: value', not {text!r}")
    return found[1], found[2]


def _reason(response: HTTPResponse, content: bytes) -> str:
    """The message of an error response, or its status and the beginning of its body if it has none."""
    text = content.decode(errors="replace")
    try:
        error = json.loads(text.removeprefix("data:"))["error"]
    except (ValueError, KeyError, TypeError):
        shown = " ".join(text.split())[:SHOWN_LENGTH_MAX]
        return f"{response.status} {response.reason}" + (f": {shown}" if shown else "")
    return str(error)
