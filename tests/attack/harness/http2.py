# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Malformed HTTP/2 and gRPC by a generator of random numbers. (pure)

A conversation mostly begins correctly: a server that rejects the first bytes tests little.
"""

from functools import cache
from random import Random
from socket import socket

import hpack
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from . import messages
from .bombs import plain

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
OPENING = PREFACE + SettingsFrame(0).serialize()
END_STREAM = 1
SERVICE = "/inference.GRPCInferenceService/"
PATHS = [*(SERVICE + name for name in ("ModelInfer", "ModelStreamInfer", "ServerLive", "RepositoryIndex")), "/", "/x"]
EXTRA = [
    {}, {}, {"grpc-encoding": "gzip"}, {"grpc-encoding": "x"}, {"grpc-timeout": "1S"}, {"grpc-timeout": "99999999H"},
    {"grpc-timeout": "-1"}, {"content-length": "3"}, {"te": ""}, {"connection": "close"}, {"UPPER": "x"}, {"": "x"},
    {":late": "x"}, {"x": "y" * 9000}, {"x": "\0\r\n"}, {"a-bin": "!!!"},
]  # fmt: skip
LENGTHS = [0, 1, 5, 70_000, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
REQUEST = plain(*messages.contents(*messages.field(messages.INT64, messages.Run(b"\1"))))


@cache
def head_of(path: str, *extra: tuple[str, str]) -> bytes:
    """The header block of a call, without a table, so that it may follow any other."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a"}
    fields |= {"content-type": "application/grpc", "te": "trailers", **dict(extra)}
    never_indexed = [hpack.NeverIndexedHeaderTuple(name, value) for name, value in fields.items()]
    return bytes(hpack.Encoder().encode(never_indexed))


def head(stream: int, path: str, *extra: tuple[str, str], ended: bool = False) -> bytes:
    """The frame that begins a call."""
    flags = ["END_HEADERS", *["END_STREAM"] * ended]
    return bytes(HeadersFrame(stream, head_of(path, *extra), flags=flags).serialize())


def framed(message: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """A message as gRPC frames it, or with another length than its own."""
    return bytes([flag]) + (len(message) if length is None else length).to_bytes(4, "big") + message


def data(stream: int, content: bytes, ended: bool = False) -> bytes:
    """The frame, or frames, of some data."""
    parts = [content[at : at + 16384] for at in range(0, len(content), 16384)] or [b""]
    frames = [DataFrame(stream, part) for part in parts]
    if ended:
        frames[-1].flags.add("END_STREAM")
    return b"".join(frame.serialize() for frame in frames)


def last_call(stream: int) -> bytes:
    """A call whose answer the client reads, whatever it does with others."""
    window = bytes(WindowUpdateFrame(stream, 1000).serialize())
    return head(stream, SERVICE + "ServerLive") + window + data(stream, framed(b""), ended=True)


def read_to_end(sock: socket, stream: int) -> None:
    """Read frames until a call ends, or the connection."""
    with sock.makefile("rb") as frames:
        while len(start := frames.read(9)) == 9:
            frames.read(int.from_bytes(start[:3], "big"))
            if int.from_bytes(start[5:], "big") == stream and start[4] & END_STREAM:
                return


def _message(random: Random) -> bytes:
    content = bytearray(REQUEST)
    for _ in range(random.randrange(4)):
        at = random.randrange(len(content) + 1)
        content[at : at + random.randrange(3)] = random.randbytes(random.randrange(5))
    flag, length = random.choice([0, 0, 0, 1, 2, 255]), random.choice([None, None, None, *LENGTHS])
    return framed(bytes(content), flag, length)


def _raw_frame(random: Random) -> bytes:
    size = random.choice([0, 1, 4, 5, 8, 9, 16385, 1 << 23])
    about = bytes([random.randrange(12), random.randrange(256)]) + random.choice([0, 1, 2, 3, 1 << 31]).to_bytes(
        4, "big"
    )
    return size.to_bytes(3, "big") + about + random.randbytes(min(size, 40))


def _frame(random: Random) -> bytes | Frame:
    stream = random.choice([1, 1, 3, 5, 7, 0, 2, 101])
    match random.randrange(12):
        case 0 | 1 | 2:
            return data(stream or 1, _message(random), random.random() < 0.5)
        case 3 | 4:
            return head(stream or 1, random.choice(PATHS), *random.choice(EXTRA).items(), ended=random.random() < 0.3)
        case 5:
            return RstStreamFrame(stream or 1, random.randrange(15))
        case 6:
            return WindowUpdateFrame(stream, random.choice([1, 0x7FFFFFFF]))
        case 7:
            known = {random.choice([1, 2, 3, 4, 5, 6, 99]): random.choice([0, 1, 2**31 - 1, 2**32 - 1])}
            return SettingsFrame(0, settings=known)
        case 8:
            return ContinuationFrame(stream or 1, random.randbytes(20), flags=["END_HEADERS"] * random.randrange(2))
        case 9:
            return random.choice(
                [PingFrame(0, b"12345678"), GoAwayFrame(0, 7, 2), PriorityFrame(stream or 1, stream or 1)]
            )
        case _:
            return _raw_frame(random)


def conversation(random: Random) -> bytes:
    """All bytes of a connection."""
    if random.random() < 0.05:
        return random.choice([PREFACE, b""]) + random.randbytes(random.choice([1, 9, 100, 3000]))
    calls = [head(2 * number + 1, random.choice(PATHS[:4])) for number in range(random.randrange(1, 4))]
    frames = [_frame(random) for _ in range(random.randrange(1, 9))]
    return b"".join([OPENING, *calls, *(each if isinstance(each, bytes) else each.serialize() for each in frames)])
