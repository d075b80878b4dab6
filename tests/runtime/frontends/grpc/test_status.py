# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Statuses as headers."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.grpc.status import (
    MESSAGE_BYTES_MAX,
    STATUS_OF,
    Status,
    http_error,
    trailers,
    trailers_only,
    unsupported_encoding,
)
from pyruntime.utils.errors import Code


def unpack(packed):
    fields = packed.split(b"\0")
    assert fields.pop() == b""
    return dict(zip(fields[::2], fields[1::2], strict=True))


def unquote(text):
    """As a client reads grpc-message."""
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(text).decode(errors="replace")


def test_every_code_has_a_status():
    assert set(STATUS_OF) == set(Code)
    assert STATUS_OF[Code.INVALID_ARG] == Status.INVALID_ARGUMENT


@given(st.text(max_size=300))
@example(" ")
@example(" Expected [-1], got [1,1]. ")
def test_messages_come_back(message):
    """The trailer is printable ASCII for every message, without white space around it, and decodes to that message."""
    fields = unpack(trailers(Status.INTERNAL, message))
    assert fields[b"grpc-message"] == fields[b"grpc-message"].strip()
    assert fields[b"grpc-status"] == b"13"
    assert all(0x20 <= byte < 0x7F for byte in fields[b"grpc-message"])
    expected = message.encode(errors="backslashreplace").decode()
    assert unquote(fields[b"grpc-message"].decode()) == expected


@pytest.mark.parametrize("message", ["x" * 10_000, "ß" * 10_000])
def test_long_messages_are_cut(message):
    """Percent-encoding at most triples a cut message, so that the headers stay within what clients accept."""
    text = unpack(trailers(Status.INTERNAL, message))[b"grpc-message"]
    assert MESSAGE_BYTES_MAX <= len(text) <= 3 * MESSAGE_BYTES_MAX


def test_a_response_of_nothing_but_headers():
    fields = unpack(trailers_only(Status.NOT_FOUND, "no such model"))
    assert fields == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-status": b"5",
        b"grpc-message": b"no such model",
    }
    assert unpack(http_error(415)) == {b":status": b"415"}


def test_an_unknown_encoding_says_which_there_are():
    fields = unpack(unsupported_encoding("snappy"))
    assert fields[b"grpc-status"] == b"12"
    assert fields[b"grpc-accept-encoding"] == b"identity,deflate,gzip"
