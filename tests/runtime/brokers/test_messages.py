# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Packets between the host and a broker."""

import msgpack
import pytest

from pyruntime.runtime.brokers.messages import (
    PACKET_BYTES_MAX,
    Answer,
    Request,
    Verb,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from pyruntime.utils.errors import PeerError
from pyruntime.utils.gpu.driver import GpuMemoryError, gpu_error


def test_requests():
    """A request is what it was."""
    assert decode_request(encode_request(7, Verb.OPEN, 3, b"x" * 64)) == Request(7, Verb.OPEN, (3, b"x" * 64))
    assert decode_request(encode_request(0, Verb.READ, 1, 2, 2**60, 4, 5)).arguments == (1, 2, 2**60, 4, 5)


def test_answers():
    """An answer is a result, or an error of its kind."""
    assert decode_answer(encode_answer(7, None, 2**60)) == Answer(7, None, 2**60)
    serial, error, _ = decode_answer(encode_answer(8, gpu_error("CUDA_ERROR_OUT_OF_MEMORY", "open", "no memory")))
    assert (serial, type(error), str(error)) == (8, GpuMemoryError, "open: no memory")


def test_long_explanations_fit():
    """Whatever a driver says, the packet is not too long."""
    assert len(encode_answer(1, gpu_error("CUDA_ERROR_NOT_SUPPORTED", "open", "\u20ac" * 10_000))) < PACKET_BYTES_MAX


@pytest.mark.parametrize(
    "packet",
    [b"", b"\xc1", msgpack.packb(5), msgpack.packb([1, None]), msgpack.packb(["x", None, 0]), msgpack.packb([1, 5, 0])],
)
def test_no_answers(packet):
    """Anything else breaks the protocol."""
    with pytest.raises(PeerError, match="no answer"):
        decode_answer(packet)
