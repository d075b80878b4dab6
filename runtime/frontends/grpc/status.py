# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Status codes of gRPC, and the headers that carry them, packed as native/_http2.pyi describes. (pure)

"gRPC over HTTP2" in gRPC's documentation defines the headers.
"""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import quote_from_bytes

from pyruntime.runtime.observe.load_report import REPORT_HEADER
from pyruntime.utils.errors import Code

# Clients accept 8 KiB of headers by default, percent-encoding triples what it encodes, and there are other headers.
MESSAGE_BYTES_MAX = 2048


class Status(IntEnum):
    """Status codes of gRPC, by its numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


# Triton's mapping: docs/reference/protocol.md, "Error codes".
STATUS_OF = {
    Code.UNKNOWN: Status.UNKNOWN,
    Code.INTERNAL: Status.INTERNAL,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.INVALID_ARG: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.CANCELLED: Status.CANCELLED,
    Code.DEADLINE_EXCEEDED: Status.DEADLINE_EXCEEDED,
}

# The beginning and the end of a response with messages.
HEAD = b":status\x00200\x00content-type\x00application/grpc\x00"
OK_TRAILERS = b"grpc-status\x000\x00"

# The supported encodings of messages, as grpc-accept-encoding lists them.
ACCEPTED_ENCODINGS = b"identity,deflate,gzip"

# The characters that grpc-message has unquoted: printable ASCII except the percent sign.
_SAFE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def encoded_head(encoding: str) -> bytes:
    """The head of a response whose messages may be compressed with `encoding`."""
    return HEAD + b"grpc-encoding\x00%b\x00" % encoding.encode()


def ok_trailers(load_report: str) -> bytes:
    """The end of a successful response with a load report: see observe/load_report.py."""
    return OK_TRAILERS + b"%b\x00%b\x00" % (REPORT_HEADER.encode(), load_report.encode())


def trailers(status: int, message: str) -> bytes:
    """The end of a response that has begun."""
    text = quote_from_bytes(message.encode(errors="backslashreplace")[:MESSAGE_BYTES_MAX], _SAFE)
    # A value neither begins nor ends with white space: RFC 9113, section 8.2.1. Some of Triton's messages do.
    if text.startswith(" "):
        text = "%20" + text[1:]
    if text.endswith(" "):
        text = text[:-1] + "%20"
    return b"grpc-status\x00%d\x00grpc-message\x00%b\x00" % (status, text.encode())


def trailers_only(status: int, message: str) -> bytes:
    """A whole response without messages."""
    return HEAD + trailers(status, message)


def unsupported_encoding(encoding: str) -> bytes:
    """The response to a request whose messages have an unsupported encoding."""
    message = f"Compression algorithm '{encoding[:40]}' is not supported, expected one of gzip, deflate, identity"
    return trailers_only(Status.UNIMPLEMENTED, message) + b"grpc-accept-encoding\x00%b\x00" % ACCEPTED_ENCODINGS


def http_error(status: int) -> bytes:
    """The response to a request that is no gRPC call: only an HTTP status."""
    return b":status\x00%d\x00" % status
