# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Heads of HTTP/1.1 responses, bodies that go out in chunks, and which status an error has. (pure)"""

from __future__ import annotations

from http import HTTPStatus

from pyruntime.runtime.observe.load_report import REPORT_HEADER
from pyruntime.utils.errors import Code

# Triton's mapping: docs/reference/protocol.md, "Error codes".
STATUS_OF = {
    Code.UNKNOWN: 400,
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.INVALID_ARG: 400,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
    Code.DEADLINE_EXCEEDED: 504,
}

LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
JSON = b"Content-Type: application/json\r\n"
# A client of HTTP/1.0 that asked for a connection that stays must be told that it does.
KEEP_ALIVE = b"Connection: keep-alive\r\n"
# What is said of a connection that does not stay.
CLOSE = b"Connection: close\r\n"
ACCEPTED_ENCODINGS = b"Accept-Encoding: gzip, deflate\r\n"
# Proxies must pass events on as they come. Those like nginx collect a response unless it has the last of these headers.
EVENT_STREAM = b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
METRICS_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


def infer_head(document_length: int, length: int, lines: bytes = b"", encoding: str = "") -> bytes:
    """The head of a successful inference: `length` bytes of body; `document_length` is 0 when all of it is JSON.

    `encoding` is what the body is compressed with. The document's length is what it was before. `lines` come last.
    """
    more = b"Content-Encoding: %b\r\n" % encoding.encode() if encoding else b""
    more += lines
    if document_length:
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n%b\r\n" % (document_length, length, more)
        )
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n%b\r\n" % (JSON, length, more)


def large_infer_head(document_length: int, length: int | None, chunked: bool, keep_alive: bool, encoding: str) -> bytes:
    """As `infer_head`, for a body in pieces. Without a `length` it is in chunks, or ends with the connection."""
    if length is not None:
        framing = b"Content-Length: %d\r\n" % length
    else:
        framing = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    kind = JSON
    if document_length:
        kind = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % document_length
    more = b"Content-Encoding: %b\r\n" % encoding.encode() if encoding else b""
    return b"HTTP/1.1 200 OK\r\n%b%b%b%b\r\n" % (kind, framing, more, b"" if keep_alive else CLOSE)


def head(status: int, length: int, keep_alive: bool, content_type: bytes = JSON, more: bytes = b"") -> bytes:
    """The head of any other response. An empty body has no type. `more` are other headers."""
    return b"%b%bContent-Length: %d\r\n%b%b\r\n" % (
        _STATUS_LINES[status],
        content_type if length else b"",
        length,
        more,
        b"" if keep_alive else CLOSE,
    )


def event_stream_head(status: int, chunked: bool, keep_alive: bool) -> bytes:
    """The head of a response that is a stream of events: in chunks, or else until the connection ends."""
    return b"%b%b%b%b\r\n" % (
        _STATUS_LINES[status],
        EVENT_STREAM,
        b"Transfer-Encoding: chunked\r\n" if chunked else b"",
        b"" if keep_alive else CLOSE,
    )


def load_report_line(report: str) -> bytes:
    """The header of a load report: see observe/load_report.py."""
    return f"{REPORT_HEADER}: {report}\r\n".encode()


def with_line(head: bytes, line: bytes) -> bytes:
    """A complete head with another header."""
    return b"%b%b\r\n" % (head[:-2], line)


def chunk(data: bytes) -> bytes:
    """`data`, which is not empty, as a piece of a body: RFC 9112, section 7.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)
