# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Heads of HTTP/1.1 requests, and bodies that come in chunks. (pure)

A client sends the same head over and over: same URL, same lengths. So heads are remembered by their bytes, and
httptools parses only those that are new. What it makes of a head is all that is kept; what it refuses is never kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import httptools

from pyruntime.runtime.frontends.routes import Route, match, match_metrics

HEAD_END = b"\r\n\r\n"
# A head longer than this is no client of ours: URL and headers together. (Apache takes 8 KiB, nginx 32 KiB.)
HEAD_BYTES_MAX = 64 << 10
# Heads remembered: 2 MiB of them at most.
HEADS_KEPT_MAX = 1024
HEAD_KEPT_BYTES_MAX = 2048
# A line between chunks: a size, and extensions that mean nothing.
CHUNK_LINE_BYTES_MAX = 4096
CHUNK_DIGITS_MAX = 15
# A length of more digits is none.
LENGTH_DIGITS_MAX = 18


class Head(NamedTuple):
    """What the server acts on in a request's head. Lengths are in bytes.

    `header_length` is the Inference-Header-Content-Length: None if there is none, -1 if it is no number.
    `takes_chunks` unless the client is one of HTTP/1.0, which knows no chunked bodies.
    """

    route: Route
    content_length: int
    chunked: bool
    header_length: int | None
    encoding: bytes
    expects_continue: bool
    keep_alive: bool
    takes_chunks: bool


class BadRequest(Exception):
    """The bytes are not an HTTP/1.1 request, or one we do not serve. `status` is what to answer before hanging up."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


_heads: dict[bytes, Head] = {}


def parse_head(head: bytes) -> Head:
    """The head in `head`, which ends with HEAD_END. Raises BadRequest."""
    known = _heads.get(head)
    if known is not None:
        return known
    if len(head) > HEAD_BYTES_MAX:
        raise too_long()
    parsed = _Collector(match).parse(head)
    if len(head) <= HEAD_KEPT_BYTES_MAX:
        if len(_heads) >= HEADS_KEPT_MAX:
            _heads.clear()
        _heads[head] = parsed
    return parsed


def parse_metrics_head(head: bytes) -> Head:
    """The same at the metrics port, whose clients are too few and too slow for anything to be remembered."""
    if len(head) > HEAD_BYTES_MAX:
        raise too_long()
    return _Collector(match_metrics).parse(head)


def too_long() -> BadRequest:
    """The refusal of a head that does not end in time."""
    return BadRequest(f"the request's head is longer than {HEAD_BYTES_MAX} bytes", 431)


class _Collector:
    """Receives what httptools finds in one head."""

    def __init__(self, match: Callable[[str, bytes], Route]) -> None:
        self._match = match
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._heads = 0
        self._stray = False
        self._keep_alive = self._takes_chunks = False
        self._parser = httptools.HttpRequestParser(self)

    def parse(self, head: bytes) -> Head:
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserUpgrade as exc:
            raise BadRequest("protocol upgrades are not supported") from exc
        except httptools.HttpParserError as exc:
            raise BadRequest(f"malformed HTTP request: {exc}") from exc
        # httptools may see the end of a head where we do not, and then reads the rest as something else.
        if self._heads != 1 or self._stray:
            raise BadRequest("malformed HTTP request: the head does not end where it should")
        headers = self._headers
        return Head(
            route=self._match(self._parser.get_method().decode("latin-1"), self._url),
            content_length=_length(headers.get(b"content-length", b"0")),
            chunked=_chunked(headers.get(b"transfer-encoding")),
            header_length=_header_length(headers.get(b"inference-header-content-length")),
            encoding=headers.get(b"content-encoding", b"").lower(),
            expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
            keep_alive=self._keep_alive,
            takes_chunks=self._takes_chunks,
        )

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._heads += 1
        # Asked now: once a message is complete the parser has forgotten what its head said.
        self._takes_chunks = self._parser.get_http_version() == "1.1"
        self._keep_alive = self._parser.should_keep_alive() and self._takes_chunks
        # There are no HEAD endpoints, and whoever asks for one takes the error's body for the next response.
        self._keep_alive = self._keep_alive and self._parser.get_method() != b"HEAD"

    def on_body(self, body: bytes) -> None:
        self._stray = True


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > LENGTH_DIGITS_MAX:
        raise BadRequest("malformed HTTP request: Content-Length is not a length")
    return int(value)


def _header_length(value: bytes | None) -> int | None:
    if value is None:
        return None
    return int(value) if value.isdigit() and len(value) <= LENGTH_DIGITS_MAX else -1


def _chunked(value: bytes | None) -> bool:
    if value is not None and value.lower() != b"chunked":
        raise BadRequest("Transfer-Encoding may only be chunked", 501)
    return value is not None


class ChunkedBody:
    """Takes the chunks of one body apart: RFC 9112, section 7.1.

    body := (size-line data CRLF)* zero-size-line trailer* CRLF       extensions of a size-line mean nothing
    """

    def __init__(self) -> None:
        self.complete = False
        self._line = b""
        self._lines = 0
        self._missing = 0
        self._in_trailer = False

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """The pieces of the body that `data` holds, and what lies behind the body. Raises BadRequest."""
        parts = []
        at = 0
        while at < len(data) and not self.complete:
            if self._missing:
                part = data[at : at + self._missing]
                self._missing -= len(part)
                at += len(part)
                parts.append(part)
                continue
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            at = end or len(data)
            self._lines += len(self._line) if self._in_trailer else 0
            if len(self._line) > CHUNK_LINE_BYTES_MAX or self._lines > HEAD_BYTES_MAX:
                raise BadRequest("malformed HTTP request: a line between chunks is too long")
            if end:
                line, self._line = self._line, b""
                self._take_line(line)
        return parts, data[at:]

    def _take_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise BadRequest("malformed HTTP request: a line between chunks does not end with CRLF")
        if self._in_trailer:
            self.complete = line == b"\r\n"
        elif self._after_chunk:
            if line != b"\r\n":
                raise BadRequest("malformed HTTP request: a chunk is longer than it says")
            self._after_chunk = False
        else:
            self._missing = _chunk_size(line)
            self._after_chunk = self._missing > 0
            self._in_trailer = self._missing == 0

    _after_chunk = False


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > CHUNK_DIGITS_MAX or digits.strip(b"0123456789abcdefABCDEF"):
        raise BadRequest("malformed HTTP request: a chunk has no size")
    return int(digits, 16)
