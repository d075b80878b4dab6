# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The messages between the host, the launcher and the guardian of a stub. (pure)

The host sends the launcher one byte for each stub, together with DESCRIPTORS. The launcher forks a guardian, which
reads the order and starts the stub. All that follows goes over the control socket, whose messages are packets:

    guardian -> host   STARTED pid, or FAILED errno as the only answer; EXITED code when the stub has ended
    host -> guardian   KILL

A host that closes its end needs the stub no more: the guardian kills it.
"""

import struct
from typing import Dict, NamedTuple, Optional, Tuple

import msgpack

# In this order. `order` is a file with an Order; the others are the arguments of `run` in stub/main.py.
DESCRIPTORS = ("control", "order", "sock", "grants", "output_fd", "requests_fd", "responses_fd")

STARTED, FAILED, EXITED = b"S", b"F", b"X"
KILL = b"K"
_REPLY = struct.Struct("!cq")
REPLY_BYTES = _REPLY.size


class Interpreter(NamedTuple):
    """Another Python than the launcher's, and all its environment variables.

    `at_terminal` says that a user debugs the model at the terminal, which the stub shares with the server.
    """

    path: str
    variables: Dict[str, str]
    at_terminal: bool


class Order(NamedTuple):
    """The stub to start: the instance's name, how its response region grows, and None for the launcher's Python.

    `variables` are environment variables of this stub, on top of those of its Python.
    """

    name: str
    growth_bytes: int
    interpreter: Optional[Interpreter]
    variables: Dict[str, str] = {}


def encode_order(order: Order) -> bytes:
    """An order as the bytes of its file."""
    # Variables of the environment may be any bytes.
    data: bytes = msgpack.packb(order, unicode_errors="surrogateescape")
    return data


def decode_order(data: bytes) -> Order:
    """The reverse of encode_order."""
    name, growth_bytes, interpreter, variables = msgpack.unpackb(data, unicode_errors="surrogateescape")
    return Order(name, growth_bytes, None if interpreter is None else Interpreter(*interpreter), variables)


def encode_reply(kind: bytes, number: int) -> bytes:
    """A packet to the host."""
    return _REPLY.pack(kind, number)


def decode_reply(data: bytes) -> Tuple[bytes, int]:
    """The kind and the number of a packet from a guardian."""
    kind, number = _REPLY.unpack(data)
    return kind, number
