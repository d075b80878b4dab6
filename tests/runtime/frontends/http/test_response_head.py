# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Heads of responses, byte for byte."""

import pytest

from pyruntime.runtime.frontends.http.request_head import ChunkedBody
from pyruntime.runtime.frontends.http.response_head import (
    CONTINUE,
    LAST_CHUNK,
    STATUS_OF,
    chunk,
    event_stream_head,
    head,
    infer_head,
    load_report_line,
    with_line,
)
from pyruntime.utils.errors import Code


def test_every_code_has_a_status():
    """Triton's mapping, whole, and a code of our own."""
    assert STATUS_OF == {
        Code.UNKNOWN: 400, Code.INTERNAL: 500, Code.NOT_FOUND: 404, Code.INVALID_ARG: 400, Code.UNAVAILABLE: 503,
        Code.UNSUPPORTED: 501, Code.ALREADY_EXISTS: 400, Code.CANCELLED: 400, Code.DEADLINE_EXCEEDED: 504,
    }  # fmt: skip
    assert set(STATUS_OF) == set(Code)


def test_continue():
    """The interim response has no headers."""
    assert CONTINUE == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(("keep_alive", "close"), [(True, b""), (False, b"Connection: close\r\n")])
class TestHeads:
    def test_inference_with_binary_data(self, keep_alive, close):
        """A response with binary data says how long its document is."""
        assert infer_head(10, 30, close) == (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: 10\r\nContent-Length: 30\r\n" + close + b"\r\n"
        )

    def test_inference_in_json(self, keep_alive, close):
        """A response without is JSON."""
        assert infer_head(0, 30, close) == (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 30\r\n" + close + b"\r\n"
        )

    def test_other(self, keep_alive, close):
        """All else is JSON too."""
        assert head(404, 5, keep_alive) == (
            b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 5\r\n" + close + b"\r\n"
        )

    def test_empty(self, keep_alive, close):
        """A response without a body has no type."""
        assert head(200, 0, keep_alive) == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + close + b"\r\n"

    @pytest.mark.parametrize(("chunked", "encoding"), [(True, b"Transfer-Encoding: chunked\r\n"), (False, b"")])
    def test_stream_of_events(self, keep_alive, close, chunked, encoding):
        """A stream has no length: it is in chunks, or ends with the connection."""
        assert event_stream_head(503, chunked, keep_alive) == (
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
            b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
            + encoding + close + b"\r\n"
        )  # fmt: skip


@pytest.mark.parametrize("status", [200, 400, 404, 405, 413, 414, 431, 500, 501, 503])
def test_every_status_that_is_used(status):
    """Each has its line."""
    assert head(status, 0, True).startswith(b"HTTP/1.1 %d " % status)


def test_another_header():
    """A header that few responses have comes last; all else is unchanged."""
    assert load_report_line("TEXT eps=0.5") == b"endpoint-load-metrics: TEXT eps=0.5\r\n"
    assert with_line(head(200, 1, True), b"a: b\r\n") == head(200, 1, True)[:-2] + b"a: b\r\n\r\n"


@pytest.mark.parametrize("data", [b"x", b"ab\r\n" * 1000])
def test_chunks(data):
    """Data is unchanged after chunking and parsing."""
    body = ChunkedBody()
    assert body.feed(chunk(data) + chunk(data[:1]) + LAST_CHUNK + b"rest") == ([data, data[:1]], b"rest")
    assert body.complete
