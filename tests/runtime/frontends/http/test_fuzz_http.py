# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Any bytes, in any pieces, over connections that note written data: see conftest.py.

For all of them, a client gets responses that can be parsed, and leaves no state behind. Input that failed once, or is
close to that, is in tests/corpus/http and is always tried.
"""

from pathlib import Path

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http.request_head import BadRequest, ChunkedBody, HeadReader
from pyruntime.runtime.frontends.http.routes import Endpoint

CORPUS = Path(__file__).parents[3] / "corpus" / "http"
CASES = sorted(CORPUS.iterdir())

LINES = [
    b"GET /v2/health/live HTTP/1.1", b"POST /v2/models/m/infer HTTP/1.1", b"POST /nowhere HTTP/1.0", b"HEAD / HTTP/1.1",
    b"POST /v2/models/m/generate HTTP/1.1", b"PRI * HTTP/2.0", b"GET http://x/v2 HTTP/1.1",
    b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: 20", b"Content-Length: 70000", b"Host: x",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue", b"Connection: close",
    b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Encoding: gzip", b"Inference-Header-Content-Length: 0",
    b"Inference-Header-Content-Length: 4", b" folded", b"A : b", b"A: \0", b"5", b"0", b"5;x", b"hello", b"{}", b"",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(LINES), max_size=12).map(lambda lines: b"\r\n".join([*lines, b""]))
PIECES = st.lists(TEXT | st.binary(max_size=40) | st.just(b"\r\n\r\n"), max_size=8)


def check_connection(server, pieces):
    """One client sends these pieces and leaves."""
    server.state.metrics = None  # no request gets there
    transport = server.connect()
    for piece in pieces:
        transport.feed(piece)
    for status, _, body in transport.responses():
        assert status in (100, 200, 400, 403, 404, 405, 408, 414, 431, 501, 503), status
        assert body.startswith(b"{") or not body.startswith(b"Traceback")
    transport.lose()
    assert server.is_idle()
    assert server.state.intake.expected_bytes == 0


@pytest.mark.parametrize("path", CASES, ids=[path.name for path in CASES])
def test_corpus(shared, path):
    """Each in one piece, byte by byte, and cut in the middle."""
    data = path.read_bytes()
    check_connection(shared, [data])
    check_connection(shared, [data[at : at + 1] for at in range(len(data))])
    check_connection(shared, [data[: len(data) // 2], data[len(data) // 2 :]])


@settings(max_examples=3 * settings.default.max_examples)
@given(PIECES)
def test_any_pieces(shared, pieces):
    """Data that is close to HTTP, and data that is not."""
    check_connection(shared, pieces)


@given(TEXT, st.lists(st.integers(0, 600), max_size=6))
def test_cuts_change_nothing(shared, text, cuts):
    """The same bytes have the same responses, wherever they are cut."""
    whole = shared.connect()
    whole.feed(text)
    parts = shared.connect()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        parts.feed(text[start:end])

    def final(transport):
        # A 100 Continue is only sent if it is needed.
        return [response for response in transport.responses() if response[0] != 100]

    # A refusal that does not wait for a body may come before the rest of it.
    if b"Expect" not in text:
        assert final(whole) == final(parts)
    whole.lose()
    parts.lose()
    assert shared.is_idle()


class _Reference:
    """The headers that another parser finds in a head."""

    def __init__(self):
        self.headers = []

    def on_header(self, name, value):
        self.headers.append((name.lower(), value.strip()))


@settings(max_examples=3 * settings.default.max_examples)
@given(TEXT | st.binary(max_size=60))
@example(b"GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5")
@example(b"GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked")
def test_any_head(text):
    """An accepted head has the same meaning for another parser. One with chunks and a length is refused by it."""
    head = text.replace(b"\r\n\r\n", b"").rstrip(b"\r\n") + b"\r\n\r\n"
    try:
        found = HeadReader().read(head)
    except BadRequest:
        return
    reference = _Reference()
    try:
        httptools.HttpRequestParser(reference).feed_data(head)
    except httptools.HttpParserError:
        names = head.lower()
        assert b"\r\ncontent-length:" in names
        assert b"\r\ntransfer-encoding:" in names
        assert (found.chunked, found.content_length, found.keep_alive) == (True, 0, False)
        return
    lengths = [value for name, value in reference.headers if name == b"content-length"]
    encodings = [value for name, value in reference.headers if name == b"transfer-encoding"]
    assert [b"%d" % found.content_length] == lengths or not lengths
    assert found.chunked == bool(encodings)
    assert not (lengths and encodings)
    assert (found.route.endpoint is Endpoint.REFUSED) == (found.route.status != 200)


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.lists(st.integers(0, 200), max_size=6), st.binary())
def test_any_chunks(parts, cuts, behind):
    """A body is the same however it is cut, on the way and into chunks, and what lies behind it is not touched."""
    text = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nA: b\r\n\r\n"
    body, found = ChunkedBody(), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        pieces, rest = body.feed(text[start:end])
        found += pieces
        assert rest == b""
    assert body.complete
    assert b"".join(found) == b"".join(parts)
    assert body.taken == len(text)
    again = ChunkedBody()
    assert again.feed(text + behind)[1] == behind
