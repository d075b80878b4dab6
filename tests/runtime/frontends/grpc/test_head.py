# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Heads of calls."""

import pytest

from pyruntime.runtime.frontends.grpc.head import HEAD_KEPT_BYTES_MAX, HEADS_KEPT_MAX, HeadReader

CALL = {":method": "POST", ":scheme": "http", ":path": "/a.B/C", ":authority": "x", "content-type": "application/grpc"}


def pack(fields):
    pairs = fields.items() if isinstance(fields, dict) else fields
    return b"".join(b"%b\0%b\0" % (name.encode(), value.encode("latin-1")) for name, value in pairs)


def read_head(packed):
    return HeadReader().read(packed)


def test_a_call():
    head = read_head(pack(CALL | {"te": "trailers", "grpc-accept-encoding": "identity, gzip", "my-key": "v"}))
    assert head.path == "/a.B/C"
    assert head.encoding == "identity"
    assert head.accepts == {"identity", "gzip"}
    assert head.metadata["my-key"] == "v"
    assert ":path" not in head.metadata
    assert head.refusal == b""


def test_values_of_one_name_are_joined():
    head = read_head(pack([*CALL.items(), ("k", "1"), ("k", "2")]))
    assert head.metadata["k"] == "1,2"


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc; charset=utf-8", "Application/gRPC"])
def test_ways_to_say_grpc(kind):
    assert read_head(pack(CALL | {"content-type": kind})).refusal == b""


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({":method": "GET"}, b":status\x00405\x00"),
        ({"content-type": "application/json"}, b":status\x00415\x00"),
        ({"content-type": "application/grpc+json"}, b":status\x00415\x00"),
        ({"content-type": ""}, b":status\x00415\x00"),
    ],
)
def test_what_is_no_call(change, refusal):
    assert read_head(pack(CALL | change)).refusal == refusal


def test_an_encoding_that_is_unknown():
    assert b"grpc-status\x0012\x00" in read_head(pack(CALL | {"grpc-encoding": "snappy"})).refusal


def test_what_goes_to_the_model():
    """Metadata whose name the pattern matches; never headers of HTTP and gRPC."""
    reader = HeadReader("key|te|grpc|:")
    head = reader.read(
        pack(CALL | {"te": "trailers", "grpc-accept-encoding": "gzip", "my-key": "v", "tenant": "w", "x": "y"})
    )
    assert head.forwarded == (("my-key", "v"), ("tenant", "w"))
    assert read_head(pack(CALL | {"my-key": "v"})).forwarded == ()


def test_heads_are_remembered():
    """The same bytes give the same value, up to a limit; what does not come again is not kept."""
    reader = HeadReader()
    packed = pack(CALL)
    assert reader.read(packed) is reader.read(bytes(bytearray(packed)))
    traced = pack(CALL | {"traceparent": "00-1-2-01"})
    assert reader.read(traced) is not reader.read(traced)
    assert reader.read(traced).traceparent == "00-1-2-01"
    long = pack(CALL | {"k": "x" * HEAD_KEPT_BYTES_MAX})
    assert reader.read(long) is not reader.read(long)
    heads = [reader.read(pack(CALL | {"k": str(number)})) for number in range(HEADS_KEPT_MAX + 1)]
    assert reader.read(packed) is reader.read(packed)
    assert reader.read(pack(CALL | {"k": "0"})) is not heads[0]


@pytest.mark.parametrize(
    ("value", "form"), [("json", "json"), ("TEXT", "text"), (" text ", "text"), ("bin", ""), ("", "")]
)
def test_load_reports(value, form):
    """The format of the load report that a client asks for; formats that are unknown ask for none."""
    assert read_head(pack(CALL | {"endpoint-load-metrics-format": value})).load_format == form
    assert read_head(pack(CALL)).load_format == ""
