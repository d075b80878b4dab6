# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the head of a call: its procedure, the compression of its messages, and its metadata. (pure)

A client sends the same head repeatedly, as the deadline is not part of it here, so heads are remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyruntime.runtime.frontends.grpc.status import http_error, unsupported_encoding
from pyruntime.runtime.header_pattern import Forwarded, HeaderPattern
from pyruntime.runtime.observe.load_report import FORMAT_HEADER, load_format

# How many heads are remembered, and the largest one that is: 4 MiB, with their parsed forms.
HEADS_KEPT_MAX = 512
HEAD_KEPT_BYTES_MAX = 2048

ENCODINGS = ("identity", "gzip", "deflate")

# zlib's levels for the values of --grpc-infer-response-compression-level.
_LEVELS = {"low": 1, "medium": 6, "high": 9}

# The encoding of messages, and zlib's level.
Encoding = tuple[str, int]

# Headers of HTTP and of gRPC itself, which are no metadata.
_NO_METADATA = (":", "grpc-")
_OF_HTTP = ("content-type", "te")
_TRACE_CONTEXT = b"traceparent\x00"


@dataclass(frozen=True, slots=True)
class CallHead:
    """One call's head. `refusal` is the packed response to a request that is no gRPC call, b"" for a call.

    `encoding` is that of compressed messages, `accepts` are those that the client accepts. `metadata` is the
    client's own, by name in small letters; several values of one name are joined by ",". `forwarded` are those of them
    that go to the model, and `traceparent` is a trace context, "" for none. `load_format` is the format of the load
    report that the client asks for, "" for none.
    """

    path: str
    encoding: str = "identity"
    accepts: frozenset[str] = frozenset()
    metadata: dict[str, str] = field(default_factory=dict)
    refusal: bytes = b""
    forwarded: Forwarded = ()
    traceparent: str = ""
    load_format: str = ""


class HeadReader:
    """Reads heads, and remembers them. `pattern` says which metadata is forwarded: see header_pattern.py."""

    def __init__(self, pattern: str = "") -> None:
        self._pattern = HeaderPattern(pattern)
        self._heads: dict[bytes, CallHead] = {}

    def read(self, packed: bytes) -> CallHead:
        """The head in a packed list of headers: see native/_http2.pyi."""
        heads = self._heads
        head = heads.get(packed)
        if head is None:
            head = self._read(packed)
            # A head with a trace context does not come again.
            if len(packed) <= HEAD_KEPT_BYTES_MAX and _TRACE_CONTEXT not in packed:
                if len(heads) >= HEADS_KEPT_MAX:
                    heads.clear()
                heads[packed] = head
        return head

    def _read(self, packed: bytes) -> CallHead:
        fields = packed.decode("latin-1").split("\0")
        headers: dict[str, str] = {}
        for name, value in zip(fields[::2], fields[1::2], strict=False):
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        encoding = headers.get("grpc-encoding", "identity")
        refusal = b""
        if headers.get(":method") != "POST":
            refusal = http_error(405)
        elif not _is_grpc(headers.get("content-type", "")):
            refusal = http_error(415)
        elif encoding not in ENCODINGS:
            refusal = unsupported_encoding(encoding)
        accepts = frozenset(text.strip() for text in headers.get("grpc-accept-encoding", "").split(","))
        metadata = {
            name: value for name, value in headers.items() if not name.startswith(_NO_METADATA) and name not in _OF_HTTP
        }
        forwarded = self._pattern.select(metadata.items())
        traceparent = headers.get("traceparent", "")
        form = load_format(headers.get(FORMAT_HEADER, ""))
        return CallHead(headers.get(":path", ""), encoding, accepts, metadata, refusal, forwarded, traceparent, form)


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
