# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Talks HTTP to a server; what goes wrong becomes one sentence for whoever gave the command."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from pyruntime.runtime.cli.parse import did_you_mean
from pyruntime.utils.errors import PyruntimeError

# A server that is there takes a connection at once. How long it then takes for an answer is up to its models.
CONNECT_S_MAX = 10.0
# What is shown of an answer that is not the protocol's.
SHOWN_LENGTH_MAX = 200

_EVENT = b"data:"


class CommandError(PyruntimeError):
    """Why a command cannot be done, as one sentence; `status` is what the process ends with."""

    status = 1


class Refused(CommandError):
    """The server said no."""

    status = 1


class WrongUsage(CommandError):
    """The command line cannot be meant so."""

    status = 2


class Unreachable(CommandError):
    """There is no server, or it went away."""

    status = 3


class ServerClient:
    """A server at a URL, such as http://localhost:8000. Raises WrongUsage if it is none.

    All methods raise CommandError.
    """

    def __init__(self, url: str) -> None:
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

    def get(self, path: str, *members: str) -> Any:
        """What a GET returns, from JSON: an object that has all of `members`."""
        document = self._parsed(self.request("GET", path)[1])
        if not isinstance(document, dict) or not all(member in document for member in members):
            raise self._strange()
        return document

    def post(self, path: str, document: Any) -> Any:
        """What a POST of a JSON document returns, from JSON; None for nothing."""
        body = self.request("POST", path, json.dumps(document).encode())[1]
        return self._parsed(body) if body else None

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """Headers, with names in small letters, and body of a successful response."""
        with self._asked(method, path, body, headers) as response:
            content = response.read()
            if response.status != 200:
                raise Refused(_reason(response, content))
            return {name.lower(): value for name, value in response.headers.items()}, content

    def stream(self, path: str, document: Any) -> Iterator[Any]:
        """The events of a stream, from JSON, as they come."""
        with self._asked("POST", path, json.dumps(document).encode(), None) as response:
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise Refused(_reason(response, response.read()))
            for line in response:
                if line.startswith(_EVENT):
                    yield self._parsed(line[len(_EVENT) :])

    def index(self) -> list[dict[str, str]]:
        """The repository index."""
        rows = self.post("/v2/repository/index", {})
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "name" in row for row in rows):
            raise self._strange()
        return rows

    @contextmanager
    def about(self, model: str) -> Iterator[None]:
        """While something is asked about a model: a refusal says which one may have been meant, if there is none."""
        try:
            yield
        except Refused as exc:
            with suppress(CommandError):
                names = {row["name"] for row in self.index()}
                if model not in names:
                    exc.args = (f"{exc}{did_you_mean(model, names)}",)
            raise

    @contextmanager
    def _asked(
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
                raise Unreachable(f"no TLS is to be had at {self.url}") from exc
            except OSError as exc:
                raise Unreachable(f"no server answers at {self.url}: {exc.strerror or exc}") from exc
            connection.sock.settimeout(None)
            try:
                connection.request(method, self._path + path, body, dict(headers or {}))
                yield connection.getresponse()
            except (OSError, HTTPException) as exc:
                raise Unreachable(f"{self.url} does not answer as a server does, or hung up") from exc
        finally:
            connection.close()

    def _parsed(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except ValueError as exc:
            raise self._strange() from exc

    def _strange(self) -> Refused:
        return Refused(f"{self.url} does not answer as a server does; is it the port of its HTTP?")


def model_path(name: str) -> str:
    """Where a model is."""
    return f"/v2/models/{quote(name, safe='')}"


def control_path(name: str, action: str) -> str:
    """Where a model is loaded or unloaded."""
    return f"/v2/repository/models/{quote(name, safe='')}/{action}"


def _reason(response: HTTPResponse, content: bytes) -> str:
    """What an error says, and otherwise its status and the beginning of it."""
    text = content.decode(errors="replace")
    try:
        error = json.loads(text.removeprefix("data:"))["error"]
    except (ValueError, KeyError, TypeError):
        shown = " ".join(text.split())[:SHOWN_LENGTH_MAX]
        return f"{response.status} {response.reason}" + (f": {shown}" if shown else "")
    return str(error)
