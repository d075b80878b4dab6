# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads heads of HTTP/1.1 requests, and bodies in chunks. (pure)

The head of a plain request to a model is read by native code (`_codecs`), any other one by httptools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import httptools

from pyruntime.runtime.frontends.common.compression import accepted_encoding
from pyruntime.runtime.frontends.common.origins import HTTP_ORIGINS, Origins, refuse_foreign
from pyruntime.runtime.frontends.common.request_log import request_line
from pyruntime.runtime.frontends.common.restrictions import API_OF, OWN_ACCESS, Access, access_of, opens, restrict
from pyruntime.runtime.frontends.http.routes import Endpoint, Route, match, match_metrics
from pyruntime.runtime.header_pattern import Forwarded, HeaderPattern
from pyruntime.runtime.native.plain import PlainHeadReader
from pyruntime.runtime.observe.load_report import FORMAT_HEADER, load_format
from pyruntime.runtime.settings import Restriction

HEAD_END = b"\r\n\r\n"
# The longest head, URL and headers together. (Apache takes 8 KiB, nginx 32 KiB.)
HEAD_BYTES_MAX = 64 << 10
# The most headers of one request. Browsers send 20 and proxies add some; Apache accepts 100.
HEADERS_MAX = 256
# A line between chunks: a size, and extensions that mean nothing.
CHUNK_LINE_BYTES_MAX = 4096
CHUNK_DIGITS_MAX = 15
# The steps of one call that reads chunks, of which each chunk takes three: a millisecond's work.
CHUNK_STEPS_MAX = 1024
# A length with more digits is refused.
LENGTH_DIGITS_MAX = 18


class Head(NamedTuple):
    """The parts of a request's head that the server uses. Lengths are in bytes.

    `header_length` is the Inference-Header-Content-Length: None if there is none, -1 if it is no number.
    `encoding` is that of the body, and `response_encoding` that of the response; "" means uncompressed.
    `keep_alive` unless the client says that this request is its last one, or speaks HTTP/1.0. Of that some clients ask
    for a connection that stays, `asks_to_stay`; they are told that it does, so what is sent to others is not for them.
    `takes_chunks` unless the client is one of HTTP/1.0, which knows no chunked bodies. `traceparent` is the header of
    that name, "" for none. `forwarded` are the headers that go to the model. `line` is the method and the path, for the
    log. `access` is for endpoints of the page. `load_format` is the format of the load report that the client asks
    for, "" for none. `is_plain`: native code has read it, and may read any other head of its connection.
    """

    route: Route
    content_length: int
    chunked: bool
    header_length: int | None
    encoding: str
    expects_continue: bool
    keep_alive: bool
    takes_chunks: bool
    response_encoding: str = ""
    traceparent: str = ""
    forwarded: Forwarded = ()
    line: str = ""
    access: Access = Access()
    load_format: str = ""
    asks_to_stay: bool = False
    is_plain: bool = False


class BadRequest(Exception):
    """The bytes are not an HTTP/1.1 request, or one we do not serve. `status` is what to answer before hanging up."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


# The actions of models whose requests are plain: no header but those that native code knows makes a difference.
_PLAIN = {
    "infer": Endpoint.MODEL_INFER,
    "generate": Endpoint.MODEL_GENERATE,
    "generate_stream": Endpoint.MODEL_GENERATE_STREAM,
}

# Without chunks, in HTTP/1.0, it is the end of the connection that ends these responses.
_ENDED_BY_CONNECTION = (Endpoint.MODEL_GENERATE_STREAM,)
# Clients of HTTP/2 begin with this.
_HTTP2 = b"PRI * HTTP/2.0\r\n"
# A proxy and this server could read a repeated header of these differently, so that is refused.
_ONCE = (b"host", b"content-length", b"transfer-encoding", b"content-encoding", b"inference-header-content-length")
# RFC 9112, section 3: three parts with one space between them. The parser accepts several spaces, and others may read
# another target then. Empty lines before the first one are ignored, as section 2.2 recommends.
_REQUEST_LINE = re.compile(rb"(?:\r\n)*+[^ \t\r\n]+ [^ \t\r\n]+ [^ \t\r\n]+\r\n")

# The span of a client, as its header names it. Of several none counts.
_SPAN = re.compile(rb"[0-9a-f]{2}-[0-9a-f-]{50,100}")

_LOAD_FORMAT = FORMAT_HEADER.encode()
# A load report is for those who may read this API.
_LOAD_API = "statistics"

# A header that says how long a body in chunks is.
_LENGTH = re.compile(rb"\r\n(?i:content-length):[ \t]*[0-9]{1,%d}[ \t]*(?=\r\n[!-~\r])" % LENGTH_DIGITS_MAX)
_IN_CHUNKS = re.compile(rb"\r\n(?i:transfer-encoding:[ \t]*chunked)[ \t]*(?=\r\n[!-~\r])")


_PLAIN_HEADS = PlainHeadReader(
    {
        action: Head(
            route=Route(endpoint),
            content_length=0,
            chunked=False,
            header_length=None,
            encoding="",
            expects_continue=False,
            keep_alive=True,
            takes_chunks=True,
            asks_to_stay=endpoint not in _ENDED_BY_CONNECTION,
            is_plain=True,
        )
        for action, endpoint in _PLAIN.items()
    }
)
# Reads the head of a plain request to a model; None for any other one, which may be wrong.
read_plain = _PLAIN_HEADS.read


class HeadReader:
    """Reads the heads that come in at one port.

    `restrictions` are by API; `pattern` says which headers models get; `origins` are those of the server's own page.
    """

    def __init__(
        self,
        restrictions: Mapping[str, Restriction] | None = None,
        pattern: str = "",
        origins: Origins = HTTP_ORIGINS,
    ) -> None:
        self._restrictions = restrictions or {}
        self._origins = origins
        self._pattern = HeaderPattern(pattern)
        # Whether any header may be forwarded, or open an endpoint of _PLAIN or a load report.
        apis = {_LOAD_API, *(API_OF[endpoint] for endpoint in _PLAIN.values())}
        reads_all = bool(pattern) or not apis.isdisjoint(self._restrictions)
        self._read_plain: Callable[[bytes], Head | None] = self._read_checked if reads_all else read_plain

    def read(self, head: bytes) -> Head:
        """The head in some bytes, which end with HEAD_END. Raises BadRequest."""
        return self._read_plain(head) or self._parse(head)

    def _read_checked(self, head: bytes) -> Head | None:
        """A plain head where all headers make a difference."""
        found = _PLAIN_HEADS.read_all(head)
        if found is None:
            return None
        plain, headers = found
        if plain.load_format and _LOAD_API in self._restrictions:
            return None
        restriction = self._restrictions.get(API_OF[plain.route.endpoint])
        if restriction is not None:
            shown = [value for name, value in headers if name.lower() == restriction.header]
            # A refusal, and a list of values, are left to the parser.
            if len(shown) != 1 or not opens(restriction, shown[0].encode()):
                return None
        forwarded = self._pattern.select(headers)
        # Other heads of the connection may have other headers, or none.
        return plain._replace(forwarded=forwarded, is_plain=False)

    def _parse(self, head: bytes) -> Head:
        if len(head) > HEAD_BYTES_MAX:
            raise too_long()
        collector = _Collector(match)
        parsed = collector.parse(head)
        parsed = parsed._replace(route=refuse_foreign(parsed.route, collector.headers, self._origins))
        if self._restrictions:
            parsed = parsed._replace(route=restrict(parsed.route, collector.headers, self._restrictions))
            if _LOAD_API in access_of(collector.headers, self._restrictions).closed:
                parsed = parsed._replace(load_format="")
        if parsed.route.endpoint in OWN_ACCESS:
            access = access_of(collector.headers, self._restrictions, self._origins)
            parsed = parsed._replace(access=access)
        forwarded = self._pattern.select(collector.pairs())
        return parsed._replace(forwarded=forwarded) if forwarded else parsed


def parse_metrics_head(head: bytes) -> Head:
    """A head at the metrics port."""
    if len(head) > HEAD_BYTES_MAX:
        raise too_long()
    return _Collector(match_metrics).parse(head)


def too_long() -> BadRequest:
    """The refusal of a head that does not end in time."""
    return BadRequest(f"the request's head is longer than {HEAD_BYTES_MAX} bytes", 431)


class _Collector:
    """Receives what httptools finds in one head. `headers` have their names in lower case, and lists of all values."""

    def __init__(self, match: Callable[[str, bytes], Route]) -> None:
        self._match = match
        self._url = b""
        self.headers: dict[bytes, bytes] = {}
        self._pairs: list[tuple[bytes, bytes]] = []
        self._twice = b""
        self._heads = 0
        self._stray = False
        self._version = ""
        self._keep_alive = False
        self._parser = httptools.HttpRequestParser(self)

    def parse(self, head: bytes) -> Head:
        framed = head
        if _IN_CHUNKS.search(head) is not None:
            # RFC 9112, section 6.3: the chunks count, and the connection ends with the response, as a proxy that goes
            # by the length sees another request next. The parser refuses a second length.
            framed = _LENGTH.sub(b"", head, count=1)
        self._feed(head, framed)
        headers = self.headers
        chunked = _chunked(headers.get(b"transfer-encoding"))
        if chunked and self._version == "1.0":
            raise BadRequest("malformed HTTP request: HTTP/1.0 has no Transfer-Encoding")
        method = self._parser.get_method().decode("latin-1")
        route = self._match(method, self._url)
        is_last = not self._keep_alive or framed is not head
        stays = not is_last and self._version == "1.0" and route.endpoint not in _ENDED_BY_CONNECTION
        return Head(
            route=route,
            content_length=_length(headers.get(b"content-length", b"0")),
            chunked=chunked,
            header_length=_header_length(headers.get(b"inference-header-content-length")),
            encoding=_encoding(headers.get(b"content-encoding", b"")),
            expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
            keep_alive=not is_last and self._version == "1.1",
            takes_chunks=self._version == "1.1",
            response_encoding=accepted_encoding(headers.get(b"accept-encoding", b"").decode("latin-1")),
            traceparent=_span(headers.get(b"traceparent", b"")),
            line=request_line(method, self._url),
            load_format=load_format(headers.get(_LOAD_FORMAT, b"").decode("latin-1")),
            asks_to_stay=stays,
        )

    def _feed(self, head: bytes, framed: bytes) -> None:
        """Parse `framed`, which is the head without what does not count."""
        if head.startswith(_HTTP2):
            raise BadRequest("this port speaks HTTP/1.1; gRPC, which needs HTTP/2, has a port of its own")
        try:
            self._parser.feed_data(framed)
        except httptools.HttpParserUpgrade as exc:
            # RFC 9110, section 7.8: a server may ignore the offer of another protocol. What follows is HTTP/1.1.
            if self._parser.get_method() == b"CONNECT":
                raise BadRequest("this server is no proxy, and has no CONNECT") from exc
            self._stray = exc.args[0] != len(framed)
        except httptools.HttpParserError as exc:
            raise BadRequest(f"malformed HTTP request: {exc}") from exc
        # httptools may see the end of a head where we do not, and then reads the rest as something else.
        if self._heads != 1 or self._stray:
            raise BadRequest("malformed HTTP request: the head does not end where it should")
        if self._version not in ("1.0", "1.1"):
            raise BadRequest("malformed HTTP request: the version is neither HTTP/1.1 nor HTTP/1.0")
        if _REQUEST_LINE.match(head) is None:
            raise BadRequest("malformed HTTP request: the request line has more than one space between its parts")
        if self._twice:
            raise BadRequest(f"malformed HTTP request: {self._twice.decode()} is there more than once")
        if len(self._pairs) > HEADERS_MAX:
            raise BadRequest(f"the request has more than {HEADERS_MAX} headers", 431)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """All headers, in order, with their names as they were written."""
        # Most are UTF-8, and whatever is not must become text all the same.
        return ((name.decode("latin-1"), value.decode(errors="replace")) for name, value in self._pairs)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser leaves trailing blanks in a value.
        small, value = name.lower(), value.rstrip(b" \t")
        if small in _ONCE and small in self.headers:
            self._twice = small
        # Several headers with one name mean a list: RFC 9110, section 5.3.
        self.headers[small] = b"%b, %b" % (self.headers[small], value) if small in self.headers else value
        self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        self._heads += 1
        # Read these now: the parser forgets them once the message is complete.
        self._version = self._parser.get_http_version()
        self._keep_alive = self._parser.should_keep_alive()

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


def _encoding(value: bytes) -> str:
    name = value.decode("latin-1").lower()
    return "" if name == "identity" else name


def _span(value: bytes) -> str:
    return value.decode() if _SPAN.fullmatch(value) is not None else ""


def _chunked(value: bytes | None) -> bool:
    if value is not None and value.lower() != b"chunked":
        raise BadRequest("Transfer-Encoding may only be chunked", 501)
    return value is not None


class ChunkedBody:
    """Parses the chunks of one body: RFC 9112, section 7.1.

    body := (size-line data CRLF)* zero-size-line trailer* CRLF       extensions of a size-line mean nothing
    """

    def __init__(self) -> None:
        self.complete = False
        # Bytes that were read: the check for slow clients compares them.
        self.taken = 0
        self._line = b""
        self._lines = 0
        self._missing = 0
        self._in_trailer = False

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """The pieces of the body in `data`, and the bytes after the body. Raises BadRequest.

        Of a body in very many chunks it reads only some, and returns the others as well: call it again.
        """
        parts = []
        at = 0
        for _ in range(CHUNK_STEPS_MAX):
            if at == len(data) or self.complete:
                break
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
        self.taken += at
        return parts, data[at:]

    def _take_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise BadRequest("malformed HTTP request: a line between chunks does not end with CRLF")
        if self._in_trailer:
            self.complete = line == b"\r\n"
            if not self.complete and b":" not in line:
                raise BadRequest("malformed HTTP request: what follows the chunks is no header")
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
    # A bare CR is the end of the line to some proxies.
    digits = b"" if b"\r" in line[:-2] else line[:-2].partition(b";")[0].rstrip(b" \t")
    if not digits or len(digits) > CHUNK_DIGITS_MAX or digits.strip(b"0123456789abcdefABCDEF"):
        raise BadRequest("malformed HTTP request: a chunk has no size")
    return int(digits, 16)
