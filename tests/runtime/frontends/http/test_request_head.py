# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Heads of requests and chunked bodies: reading, and refusals."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.common.restrictions import Access
from pyruntime.runtime.frontends.http.request_head import (
    CHUNK_STEPS_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    BadRequest,
    ChunkedBody,
    Head,
    HeadReader,
    too_long,
)
from pyruntime.runtime.frontends.http.routes import Endpoint
from pyruntime.runtime.settings import Restriction

parse_head = HeadReader().read


def parse(*headers, line=b"POST /v2/models/m/infer HTTP/1.1"):
    return parse_head(b"\r\n".join([line, b"Host: x", *headers]) + b"\r\n\r\n")


class TestHead:
    def test_of_little(self):
        """A head that says nothing has defaults."""
        head = parse()
        line = "POST /v2/models/m/infer"
        assert head[1:] == (0, False, None, "", False, True, True, "", "", (), line, Access(), "", False, True)
        assert (head.route.endpoint, head.route.model, head.route.version) == (Endpoint.MODEL_INFER, "m", -1)

    def test_of_everything(self):
        """Headers are found in upper and lower case."""
        head = parse(
            b"content-length: 12", b"INFERENCE-HEADER-CONTENT-LENGTH: 7", b"Content-Encoding: GZip",
            b"expect: 100-Continue", b"connection: close", b"accept-Encoding: Deflate",
            b"Endpoint-Load-Metrics-Format: JSON",
        )  # fmt: skip
        assert head[1:] == (
            12,
            False,
            7,
            "gzip",
            True,
            False,
            True,
            "deflate",
            "",
            (),
            "POST /v2/models/m/infer",
            Access(),
            "json",
            False,
            True,
        )

    def test_restricted_load_report(self):
        """A client that may not read statistics gets no load report."""
        reader = HeadReader({"statistics": Restriction("a-key", "secret")})
        asking = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nEndpoint-Load-Metrics-Format: text\r\n"
        assert reader.read(asking + b"\r\n").load_format == ""
        assert reader.read(asking + b"A-Key: secret\r\n\r\n").load_format == "text"

    def test_blanks(self):
        """Blanks around a value are no part of it."""
        assert parse(b"Content-Length: \t 5 \t ").content_length == 5

    def test_chunked(self):
        """A body may come in chunks."""
        assert parse(b"Transfer-Encoding: chunked").chunked

    @pytest.mark.parametrize("length", [b"Content-Length: 5", b"content-length:0", b"CONTENT-LENGTH: 12 \t"])
    def test_chunks_and_a_length(self, length):
        """The chunks count, and the request is the last one of its connection: RFC 9112, section 6.3."""
        for headers in ((length, b"Transfer-Encoding: chunked"), (b"transfer-encoding: Chunked", length, b"A: b")):
            head = parse(*headers)
            assert (head.chunked, head.content_length, head.keep_alive) == (True, 0, False)

    @pytest.mark.parametrize(
        ("line", "header", "keep_alive", "takes_chunks"),
        [
            (b"GET /v2 HTTP/1.1", b"A: b", True, True),
            (b"HEAD /v2 HTTP/1.1", b"A: b", True, True),
            (b"GET /v2 HTTP/1.1", b"Connection: close", False, True),
            (b"GET /v2 HTTP/1.0", b"A: b", False, False),
            (b"GET /v2 HTTP/1.0", b"Connection: keep-alive", False, False),
            (b"GET /v2 HTTP/1.1", b"Connection: keep-alive", True, True),
        ],
    )
    def test_keep_alive(self, line, header, keep_alive, takes_chunks):
        """Connections of HTTP/1.1 stay, unless they are asked not to; and only its clients know of chunks."""
        head = parse(header, line=line)
        assert (head.keep_alive, head.takes_chunks) == (keep_alive, takes_chunks)

    @pytest.mark.parametrize(
        ("line", "header", "stays"),
        [
            (b"GET /v2 HTTP/1.0", b"Connection: keep-alive", True),
            (b"GET /v2 HTTP/1.0", b"connection: Keep-Alive", True),
            (b"GET /v2 HTTP/1.0", b"Connection: close", False),
            (b"GET /v2 HTTP/1.0", b"A: b", False),
            (b"GET /v2 HTTP/1.1", b"Connection: keep-alive", False),
            (b"POST /v2/models/m/generate_stream HTTP/1.0", b"Connection: keep-alive", False),
        ],
    )
    def test_asks_to_stay(self, line, header, stays):
        """A client of HTTP/1.0 may ask for a connection that stays, unless its end is the end of a stream."""
        assert parse(header, line=line).asks_to_stay is stays

    @pytest.mark.parametrize("offer", [b"h2c", b"websocket", b"TLS/1.0, h2c"])
    @pytest.mark.parametrize("line", [b"GET /v2 HTTP/1.1", b"POST /v2/models/m/infer HTTP/1.1", b"GET /v2 HTTP/1.0"])
    def test_offers_of_other_protocols(self, line, offer):
        """An offer to go on with another protocol changes nothing."""
        headers = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + offer, b"HTTP2-Settings: AAA")
        plain = parse(b"Content-Length: 7", line=line)._replace(is_plain=False)
        assert parse(*headers, b"Content-Length: 7", line=line) == plain
        assert parse(b"Content-Length: 7", *headers, line=line) == plain
        assert not parse(b"Connection: Upgrade, close", b"Upgrade: h2c", line=line).keep_alive

    @pytest.mark.parametrize(
        ("value", "length"),
        [(b"0", 0), (b"17", 17), (b"-1", -1), (b"x", -1), (b"", -1), (b"1.0", -1), (b"9" * 19, -1), (b"1 2", -1)],
    )
    def test_header_length(self, value, length):
        """A length that is not a number differs from an absent length."""
        assert parse(b"Inference-Header-Content-Length: " + value).header_length == length

    def test_query(self):
        """A query means nothing."""
        assert parse(line=b"GET /v2?a=b HTTP/1.1").route.endpoint is Endpoint.SERVER_METADATA

    def test_unknown_path(self):
        """A path that leads nowhere is a request all the same."""
        assert parse(line=b"GET /nowhere HTTP/1.1").route.status == 404


class TestRefused:
    @pytest.mark.parametrize(
        "head",
        [
            b"\r\n\r\n",
            b"hello\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/3.7\r\n\r\n",
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1234567890123456789\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\n 2\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1, 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: identity\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding : chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.0\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"\r\nContent-Length: 1\r\nGET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
            b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
            b" GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\r\nGET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\n\nGET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n",
            b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\n\r\n",
            b"GET / HTTP/1.1\r\nInference-Header-Content-Length: 1\r\nInference-Header-Content-Length: 2\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length:\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\0c\r\n\r\n",
            b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
            b"GET / HTTP/1.1\r\n: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: b\rC: d\r\n\r\n",
            b"GET / HTTP/1.1\nA: b\r\n\r\n",
            b"GET /\r\n\r\n",
            b"get / HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\nGET / HTTP/1.1\r\n\r\n",
            b"GET /\x00 HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\n",
            b"CONNECT x:80 HTTP/1.1\r\n\r\n",
        ],
    )
    def test_as_malformed(self, head):
        """A malformed or ambiguous head is refused with 400, also when it is repeated."""
        for _ in range(2):
            with pytest.raises(BadRequest) as caught:
                parse_head(head)
            assert caught.value.status == 400

    def test_empty_lines_before_a_request(self):
        """Some clients send an empty line behind a body: it is ignored."""
        assert parse_head(b"\r\nGET /v2 HTTP/1.1\r\nHost: a\r\n\r\n").route.endpoint is Endpoint.SERVER_METADATA

    def test_http2(self):
        """A client that speaks HTTP/2 is told that gRPC has another port."""
        with pytest.raises(BadRequest, match=r"this port speaks HTTP/1\.1; gRPC, .* has a port of its own"):
            parse_head(b"PRI * HTTP/2.0\r\n\r\n")

    def test_as_too_many_headers(self):
        """The number of headers is limited."""
        assert parse(*[b"A: b"] * (HEADERS_MAX - 1)).content_length == 0
        with pytest.raises(BadRequest) as caught:
            parse(*[b"A: b"] * HEADERS_MAX)
        assert caught.value.status == 431

    def test_as_too_long(self):
        """A head beyond the limit has a status of its own."""
        with pytest.raises(BadRequest) as caught:
            parse(b"X: " + b"x" * HEAD_BYTES_MAX)
        assert caught.value.status == too_long().status == 431

    @given(st.binary(max_size=100))
    def test_arbitrary_bytes(self, data):
        """Arbitrary bytes are a head or are refused."""
        try:
            head = parse_head(data.replace(b"\r\n\r\n", b"") + b"\r\n\r\n")
        except BadRequest:
            return
        assert type(head) is Head

    @given(st.binary(max_size=60))
    def test_arbitrary_headers(self, data):
        """Arbitrary header values are accepted or refused."""
        with contextlib.suppress(BadRequest):
            assert type(parse(b"X: " + data.replace(b"\r\n\r\n", b""))) is Head


def chunks(*parts, end=b"0\r\n\r\n"):
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


def read(body, data):
    """Feed a body until all of it is read. Returns its pieces and the rest."""
    parts = []
    while data and not body.complete:
        more, data = body.feed(data)
        parts += more
    return parts, data


class TestChunks:
    def test_whole(self):
        """A body in one piece is complete at once."""
        body = ChunkedBody()
        assert body.feed(chunks(b"hello ", b"world")) == ([b"hello ", b"world"], b"")
        assert body.complete

    def test_one_byte_at_a_time(self):
        """A body that arrives byte by byte is complete with its last byte."""
        body = ChunkedBody()
        data = chunks(b"hello ", b"world")
        parts = []
        for at in range(len(data)):
            assert not body.complete
            parts += body.feed(data[at : at + 1])[0]
        assert b"".join(parts) == b"hello world"
        assert body.complete

    def test_empty(self):
        """A body may be empty."""
        body = ChunkedBody()
        assert body.feed(chunks()) == ([], b"")
        assert body.complete

    @pytest.mark.parametrize(
        "end",
        [b"0\r\nTrailer: x\r\n\r\n", b"0;extension=1\r\n\r\n", b"0000\r\n\r\n"],
        ids=["trailer", "extension", "zeros"],
    )
    def test_other_ends(self, end):
        """Trailers and extensions mean nothing."""
        body = ChunkedBody()
        assert body.feed(chunks(b"a", end=end)) == ([b"a"], b"")
        assert body.complete

    def test_taken(self):
        """`taken` is the number of bytes read, framing included."""
        body = ChunkedBody()
        body.feed(b"5\r\nab")
        assert body.taken == 5
        body.feed(b"cde\r\n0\r\n\r\nGET")
        assert body.taken == 15

    @pytest.mark.parametrize(
        "data",
        [
            b"x\r\n",
            b"-1\r\n",
            b"1\r\nab\r\n",
            b"f" * 40 + b"\r\n",
            b"\r\n\r\n",
            b"1\n",
            b" 1\r\n",
            b"1\x0b\r\n",
            b"1;a\rb\r\n",
            b"0\r\nGET / HTTP/1.1\r\n",
            b"0\r\n" + b"A: b\r\n" * HEAD_BYTES_MAX,
        ],
    )
    def test_bad(self, data):
        """Data that is not a chunk is refused."""
        with pytest.raises(BadRequest):
            read(ChunkedBody(), data)

    @pytest.mark.parametrize("end", [b"0\r\n\r\n", b"0\r\n" + b"A:\r\n" * CHUNK_STEPS_MAX + b"\r\n"])
    def test_very_many(self, end):
        """One call reads some of very many chunks, or lines, and returns the rest."""
        body = ChunkedBody()
        data = chunks(*[b"a"] * CHUNK_STEPS_MAX, end=end)
        parts, rest = body.feed(data)
        assert 0 < len(parts) < CHUNK_STEPS_MAX
        assert body.taken == len(data) - len(rest)
        more, behind = read(body, rest + b"GET")
        assert b"".join(parts + more) == b"a" * CHUNK_STEPS_MAX
        assert behind == b"GET"
        assert body.complete

    @given(st.binary(max_size=50))
    def test_arbitrary_bytes(self, data):
        """Arbitrary bytes are part of a body or are refused."""
        body = ChunkedBody()
        try:
            parts, behind = body.feed(data)
        except BadRequest:
            return
        assert all(type(part) is bytes for part in parts)
        assert data.endswith(behind)

    def test_what_lies_behind(self):
        """Bytes behind the body belong to the next request, and are handed back."""
        body = ChunkedBody()
        assert body.feed(chunks(b"a\nb") + b"GET / HTTP/1.1\r\n") == ([b"a\nb"], b"GET / HTTP/1.1\r\n")
        assert body.complete
