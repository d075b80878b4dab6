# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The messages between the host and a broker: packets of msgpack over a socket. (pure)

    host -> broker   [serial, verb, argument*]     serial 0: no answer is wanted
    broker -> host   [serial, error, result]       in the order of the requests; serial 0 when the broker is ready
    error := None | [reason, call, explanation]

    GRANT region              the packet carries the descriptor of a shared-memory region. No answer
    REVOKE region             no later packet refers to it. No answer
    OPEN memory handle        the memory of a client on the GPU, or of another GPU's broker; the result is its size.
                              Open twice is open once
    CLOSE memory              answered when it is closed: its owner may free it then
    READ memory at size region offset      copy from the GPU to the region
    WRITE memory at size region offset     copy from the region to the GPU
    ALLOCATE memory size      memory of the broker's own; the result is its handle
    FREE memory               no process has it open any more. No answer
    EVENT memory handle       copies from the memory come behind this event from now on; b"" for none.
                              Not answered when the process of an event has ended
    COPY memory at size target offset      copy on the GPU, to it or from it, to `offset` of the memory `target`
    COMPLETE memory           answered when all copies behind its event are complete, for all processes

The host chooses the numbers of regions and memory. The broker handles one packet after the other, so a packet may refer
to what an earlier one, which is not answered yet, grants or opens.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from pyruntime.utils.errors import PeerError
from pyruntime.utils.gpu.driver import GpuError, gpu_error

# A handle and some numbers are shorter; the text of a driver's error is cut.
PACKET_BYTES_MAX = 4096
EXPLANATION_CHARS_MAX = 512


class Verb(IntEnum):
    """The kind of a request. See the module."""

    GRANT = 1
    REVOKE = 2
    OPEN = 3
    CLOSE = 4
    READ = 5
    WRITE = 6
    ALLOCATE = 7
    FREE = 8
    EVENT = 9
    COPY = 10
    COMPLETE = 11


class Request(NamedTuple):
    """A packet to a broker."""

    serial: int
    verb: Verb
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    """A packet to the host. `error` is None if the request succeeded."""

    serial: int
    error: GpuError | None
    result: int | bytes


def encode_request(serial: int, verb: Verb, *arguments: int | bytes) -> bytes:
    """The packet of a request."""
    packet: bytes = msgpack.packb((serial, verb, *arguments))
    return packet


def decode_request(packet: bytes) -> Request:
    """The reverse of encode_request."""
    serial, verb, *arguments = msgpack.unpackb(packet)
    return Request(serial, Verb(verb), tuple(arguments))


def encode_answer(serial: int, error: GpuError | None = None, result: int | bytes = 0) -> bytes:
    """The packet of an answer."""
    reason = None if error is None else (error.reason, error.call, error.explanation[:EXPLANATION_CHARS_MAX])
    packet: bytes = msgpack.packb((serial, reason, result))
    return packet


def decode_answer(packet: bytes) -> Answer:
    """The reverse of encode_answer. Raises PeerError."""
    try:
        serial, reason, result = msgpack.unpackb(packet)
        error = None if reason is None else gpu_error(*map(str, reason))
        return Answer(int(serial), error, result if isinstance(result, bytes) else int(result))
    except (ValueError, TypeError) as exc:
        raise PeerError(f"the broker of a GPU sent a packet that is no answer: {exc}") from exc
