# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import msgpack
import pytest

from pyruntime.utils.errors import PeerError
from pyruntime.utils.request_codec import (
    IN_MAIN_MEMORY,
    PARAMETERS,
    PLACES,
    RequestOptions,
    decode_request,
    encode_request,
    encode_requests,
)

OPTIONS = RequestOptions("s", 3, 9, ["OUT"], '{"a":1}')
REFS = [("IN", "FP32", [1, 2], 64, 8, 0, 0)]
ENCODED = ["7", "s", 3, 9, ["OUT"], '{"a":1}', REFS, "12", None]


class Accepted:
    """A request of the host's."""

    def __init__(self, places=None):
        self.id = "7"
        self.options = OPTIONS
        self.tensors = REFS
        self.trace_context = "12"
        self.places = places


def arrived(encoded):
    """A request as it comes out of a frame."""
    return msgpack.unpackb(msgpack.packb(encoded))


def test_a_batch():
    """Every field has its place, whether it is used or not."""
    places = {"OUT": (64, 8, 0, 0)}
    assert encode_requests([Accepted(), Accepted(places)]) == [ENCODED, [*ENCODED[:8], places]]


def test_for_native_code():
    """The parameters can be replaced afterwards."""
    encoded = encode_request("7", OPTIONS, REFS, "12")
    assert encoded == ENCODED
    assert encoded[PARAMETERS] == '{"a":1}'
    assert encode_request("", RequestOptions(), []) == ["", 0, 0, 0, None, "", [], "", None]


def test_as_it_is_encoded():
    """A request is equal to the original after encoding and decoding."""
    (encoded,) = encode_requests([Accepted()])
    id, options, tensors, trace_context, in_main_memory = decode_request(arrived(encoded))
    assert type(options) is RequestOptions
    assert (id, options, trace_context, in_main_memory) == ("7", OPTIONS, "12", False)
    assert [tuple(tensor) for tensor in tensors] == REFS


def test_main_memory():
    """A call may say that its outputs must be in main memory."""
    encoded = encode_request("7", OPTIONS, REFS, "12")
    encoded[PLACES] = IN_MAIN_MEMORY
    assert decode_request(arrived(encoded))[-1] is True


def test_places():
    """They come from the host alone: no call refers to the memory of clients."""
    with pytest.raises(PeerError):
        decode_request(arrived([*ENCODED[:8], {"OUT": (64, 8, 0, 0)}]))


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, 7),
        (1, 1.5),
        (2, "1"),
        (3, None),
        (4, "OUT"),
        (4, [1]),
        (5, None),
        (6, None),
        (6, {}),
        (7, None),
        (7, 1),
        (8, {}),
    ],
)  # fmt: skip
def test_types(place, wrong):
    """A field of a wrong type in an encoded request raises PeerError."""
    bad = list(ENCODED)
    bad[place] = wrong
    with pytest.raises(PeerError):
        decode_request(bad)


@pytest.mark.parametrize("length", [0, 6, 7, 8])
def test_length(length):
    """A request has all of its fields, and no others."""
    for bad in (ENCODED[:length], [*ENCODED, None]):
        with pytest.raises(PeerError):
            decode_request(bad)
