# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Heads of calls."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.grpc.head import HeadReader
from pyruntime.runtime.native._codecs import read_call

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


# What clients send, and what is near the border of what native code accepts.
VALUES = {
    ":method": ["POST", "GET", "post"],
    ":path": ["/a.B/C", "/\u00fc", ""],
    "content-type": ["application/grpc", "application/grpc+proto", "application/grpc; a=b", "Application/grpc", ""],
    "grpc-encoding": ["identity", "gzip", "deflate", "snappy", "Gzip", ""],
    "grpc-accept-encoding": ["identity, gzip", ""],
    "traceparent": ["00-1-2-01", "\u00fc", ""],
    "endpoint-load-metrics-format": ["json", "other"],
    "te": ["trailers"],
    "x-request-id": ["1", "\u00fc", ""],
    "X": ["1"],
}
HEADERS = st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(VALUES[name])))


@st.composite
def packed_heads(draw):
    """A head that has what a call needs, mostly, and other headers; the bytes of some are changed."""
    usual = [(name, draw(st.sampled_from([VALUES[name][0]] * 9 + VALUES[name]))) for name in (":method", ":path")]
    usual.append(("content-type", draw(st.sampled_from(["application/grpc"] * 9 + VALUES["content-type"]))))
    packed = pack(draw(st.permutations([*usual, *draw(st.lists(HEADERS, max_size=3))])))
    if draw(st.integers(0, 3)):
        return packed
    at = draw(st.integers(0, len(packed)))
    return packed[:at] + draw(st.sampled_from([b"", b"\0", b"\0\0", b"a"])) + packed[at + draw(st.integers(0, 1)) :]


@given(packed_heads())
def test_native_code_reads_a_head_as_the_reference_does(packed):
    """Or leaves it to that."""
    reader = HeadReader()
    plain = read_call(packed)
    event(f"is plain: {plain is not None}")
    assert plain is None or plain == reader.read_any(packed)
    assert reader.read(packed) == reader.read_any(packed)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"te": "trailers", "user-agent": "grpc-c++/1.54", "grpc-accept-encoding": "identity, deflate, gzip"},
        {"grpc-encoding": "gzip", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"x-request-id": "7", "authorization": "Bearer a", "a-bin": "\u00fc"},
    ],
)
def test_heads_of_clients_are_plain(more):
    assert read_call(pack(CALL | more)) is not None


def test_native_code_reads_no_other_type():
    with pytest.raises(TypeError):
        read_call("text")


@pytest.mark.parametrize(
    ("value", "form"), [("json", "json"), ("TEXT", "text"), (" text ", "text"), ("bin", ""), ("", "")]
)
def test_load_reports(value, form):
    """The format of the load report that a client asks for; formats that are unknown ask for none."""
    assert read_head(pack(CALL | {"endpoint-load-metrics-format": value})).load_format == form
    assert read_head(pack(CALL)).load_format == ""
