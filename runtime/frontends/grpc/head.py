# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the head of a call: its procedure, the compression of its messages, and its metadata. (pure)

Native code reads plain heads; the reference here reads all of them. Metadata is parsed when somebody asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

from pyruntime.runtime.frontends.grpc.status import http_error, unsupported_encoding
from pyruntime.runtime.header_pattern import Forwarded, HeaderPattern
from pyruntime.runtime.native.plain import read_call
from pyruntime.runtime.observe.load_report import FORMAT_HEADER, load_format

ENCODINGS = ("identity", "gzip", "deflate")

# zlib's levels for the values of --grpc-infer-response-compression-level.
_LEVELS = {"low": 1, "medium": 6, "high": 9}

# The encoding of messages, and zlib's level.
Encoding = tuple[str, int]

# Headers of HTTP and of gRPC itself, which are no metadata: the beginnings of their names, and names that are common.
_NO_METADATA = (":", "grpc-")
_OF_HTTP = frozenset(("content-type", "te", ":method", ":scheme", ":path", ":authority", "grpc-accept-encoding"))


class CallHead(NamedTuple):
    """One call's head. `refusal` is the packed response to a request that is no gRPC call, b"" for a call.

    `packed` are all headers. `encoding` is that of compressed messages. `forwarded` is the metadata that goes to the
    model, and `traceparent` is a trace context, "" for none. `load_format` is the format of the load report that the
    client asks for, "" for none. Native code makes such tuples.
    """

    path: str
    packed: bytes = b""
    encoding: str = "identity"
    refusal: bytes = b""
    forwarded: Forwarded = ()
    traceparent: str = ""
    load_format: str = ""

    @property
    def accepts(self) -> frozenset[str]:
        """The encodings that the client accepts."""
        accepted = _unpack(self.packed).get("grpc-accept-encoding", "")
        return frozenset(text.strip() for text in accepted.split(","))

    @property
    def metadata(self) -> dict[str, str]:
        """The client's own headers, by name in small letters; several values of one name are joined by ","."""
        return _metadata(_unpack(self.packed))


class HeadReader:
    """Reads heads. `pattern` says which metadata is forwarded: see header_pattern.py."""

    def __init__(self, pattern: str = "") -> None:
        self._pattern = HeaderPattern(pattern) if pattern else None

    def read(self, packed: bytes) -> CallHead:
        """The head in a packed list of headers: see native/_http2.pyi."""
        fields = read_call(packed)
        if fields is None:
            return self.read_any(packed)
        # As the constructor does, which costs a call.
        head = tuple.__new__(CallHead, fields)
        return head if self._pattern is None else head._replace(forwarded=self._pattern.select(head.metadata.items()))

    def read_any(self, packed: bytes) -> CallHead:
        """The reference of `read`."""
        headers = _unpack(packed)
        encoding = headers.get("grpc-encoding", "identity")
        refusal = b""
        if headers.get(":method") != "POST":
            refusal = http_error(405)
        elif not _is_grpc(headers.get("content-type", "")):
            refusal = http_error(415)
        elif encoding not in ENCODINGS:
            refusal = unsupported_encoding(encoding)
        forwarded = () if self._pattern is None else self._pattern.select(_metadata(headers).items())
        traceparent = headers.get("traceparent", "")
        form = load_format(headers.get(FORMAT_HEADER, ""))
        return CallHead(headers.get(":path", ""), packed, encoding, refusal, forwarded, traceparent, form)


def _unpack(packed: bytes) -> dict[str, str]:
    fields = packed.decode("latin-1").split("\0")
    names, values = fields[::2], fields[1::2]
    headers = dict(zip(names, values, strict=False))
    if len(headers) == len(values):
        return headers
    headers.clear()
    for name, value in zip(names, values, strict=False):
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _metadata(headers: dict[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in headers.items() if name not in _OF_HTTP and not name.startswith(_NO_METADATA)
    }


def _is_grpc(content_type: str) -> bool:
    """Whether this is gRPC with protobuf messages, which is the default format."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("application/grpc", "application/grpc+proto")


def response_encoding(level: str, head: CallHead) -> Encoding | None:
    """The encoding of the responses to an inference call, None for none. Of what the client accepts, gzip comes first.

    `level` is --grpc-infer-response-compression-level.
    """
    if level == "none":
        return None
    for encoding in ("gzip", "deflate"):
        if encoding in head.accepts:
            return encoding, _LEVELS[level]
    return None
