# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The clients of attacks: bare sockets that count what they send."""

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from ...e2e.harness import raw
from ...e2e.harness.http2_client import BareClient
from ...e2e.harness.server import Server

STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
STATUS_BYTES = len(b"HTTP/1.1 200")
PIECE_BYTES = 1 << 16
SENT_BYTES = 1 << 18
# Patience, not a measure: a server that is attacked may be slow.
LIMIT_S = 300.0


class Target:
    """A server under attack. `random` is seeded, `sent` counts the bytes that clients have written."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = Random(seed)
        self.sent = 0
        self.statuses: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, sent: int, *statuses: str) -> None:
        """Note bytes that were sent, and what was answered."""
        with self._lock:
            self.sent += sent
            self.statuses.update(statuses)

    def connect(self, port: int = 0) -> socket.socket:
        """A connection, to HTTP unless to another port."""
        return socket.create_connection(("127.0.0.1", port or self.server.port), timeout=LIMIT_S)

    def http(self, *requests: bytes) -> list[str]:
        """Send requests over one connection, all at once, then nothing more; the statuses of all answers."""
        with self.connect() as sock:
            statuses = _talk(sock, b"".join(requests))
        self.count(sum(map(len, requests)), *statuses)
        return statuses

    def post(self, path: str, body: bytes, *headers: str) -> bytes:
        """A request as bytes."""
        lines = [f"POST {path} HTTP/1.1", "Host: x", *headers, f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode() + body

    def hang_up(self, data: bytes, port: int = 0) -> None:
        """Send bytes, and reset the connection."""
        with suppress(ConnectionError):
            sock = self.connect(port)
            sock.sendall(data)
            raw.reset(sock)
        self.count(len(data))

    def bytes_to(self, port: int, data: bytes) -> None:
        """Send bytes to a port, then nothing more, and read until the server hangs up.

        They must be few enough for the buffers of the socket.
        """
        with self.connect(port) as sock, suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(PIECE_BYTES):
                pass
        self.count(len(data))

    def flood(self, port: int, pieces: Iterable[bytes]) -> bool:
        """Send pieces and read nothing until the server hangs up or there are no more; whether it has hung up."""
        with self.connect(port) as sock:
            try:
                for piece in pieces:
                    sock.sendall(piece)
                    self.count(len(piece))
            except ConnectionError:
                return True
        return False

    @contextmanager
    def grpc(self, **how: Any):
        """A client of HTTP/2."""
        with BareClient(self.server.grpc_port, **how) as client:
            client.sock.settimeout(LIMIT_S)
            yield client

    def call(self, path: str, message: bytes, is_compressed: bool = True) -> str:
        """One gRPC call of one message; the status it ends with, "hung up" if none came."""
        metadata = {"grpc-encoding": "gzip"} if is_compressed else {}
        with self.grpc() as client:
            try:
                stream = client.head(path, **metadata)
                client.calls[stream].data = _Discarded()
                client.send(stream, bytes([is_compressed]) + len(message).to_bytes(4, "big"))
                for at in range(0, len(message), SENT_BYTES):  # what windows let through is cut off it again and again
                    client.send(stream, message[at : at + SENT_BYTES], ended=at + SENT_BYTES >= len(message))
                status = client.status(stream)
            except (AssertionError, ConnectionError):
                status = "hung up"
        self.count(len(message), status)
        return status


def _talk(sock: socket.socket, data: bytes) -> list[str]:
    """Send and read at once, so that neither side waits for the other; the statuses of HTTP that came.

    Answers may be large, and are not kept.
    """
    statuses: list[str] = []

    def read() -> None:
        last = b""
        with suppress(OSError):
            while piece := sock.recv(PIECE_BYTES):
                text = last + piece
                statuses.extend(status.decode() for status in STATUS.findall(text))
                # The beginning of a status line, maybe: too short for a whole one.
                last = text[1 - STATUS_BYTES :]

    reader = threading.Thread(target=read)
    reader.start()
    with suppress(OSError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    reader.join()
    return statuses


class _Discarded:
    """Takes data and keeps none of it."""

    def __iadd__(self, data: bytes) -> "_Discarded":
        return self


def at_once(count: int, attack: Callable[[int], object]) -> None:
    """Do something so often, all at a time."""
    begun = threading.Barrier(count)

    def run(number: int) -> None:
        begun.wait()
        attack(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))
