# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that are slow, greedy or many, and bytes that mean two things: all others are served meanwhile."""

import http.client
import json
import re
import socket
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from pyruntime.runtime.frontends.common import client_timeouts

from .harness.models import ECHO

MIB = 1 << 20
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: any\r\n\r\n"
# Of servers that are to be tried for their patience, in seconds.
CHECK_S, PATIENCE_S = 0.1, 0.5
# A server that has few descriptors.
POOR = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")


def infer_head(size):
    """The head of a request with so large a body, and the JSON document that it begins with."""
    tensor = {"name": "IN", "shape": [size // 8], "datatype": "INT64", "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    lengths = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n" % (len(text) + size, len(text))
    return b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: any\r\n%b\r\n" % lengths, text


def read_status(sock):
    """The status of the one response that comes before the end of the connection; 0 for none."""
    with sock.makefile("rb") as stream:
        data = stream.read()
    return int(data.split()[1]) if data else 0


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("limits")
    write_model(repository, "identity", ECHO)
    with serving(repository) as server:
        yield server


@pytest.fixture(scope="session")
def impatiently(with_limits):
    """`serve(wrapper=impatiently(NAME, ...))`: a server of which these limits are low.

    A client that is not meant to be slow may still be slow with a new connection, but not within one piece of data.
    """
    return lambda *names: with_limits(client_timeouts, CHECK_S=CHECK_S, **dict.fromkeys(names, PATIENCE_S))


@pytest.fixture(scope="module")
def impatient(tmp_path_factory, write_model, serving, impatiently):
    repository = tmp_path_factory.mktemp("impatient")
    write_model(repository, "identity", ECHO)
    with serving(repository, wrapper=impatiently("HEAD_S_MAX", "BODY_STALLED_S_MAX")) as server:
        yield server


class TestSlow:
    @pytest.mark.parametrize(
        ("sent", "status"),
        [
            (READY[:-1], 408),
            (b"GET /v2 HTTP/1.1\r\n", 408),
            (infer_head(8 * MIB)[0], 408),
            (b"".join(infer_head(8 * MIB)), 408),
            (b"POST /v2/models/identity/infer HTTP/1.1\r\nContent-Length: 10\r\n\r\n{", 408),
            (b"POST /v2/models/identity/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", 408),
        ],
        ids=["head", "first-line", "binary", "document", "json", "chunks"],
    )
    def test_clients(self, impatient, sent, status):
        """A client that does not go on gets the status, and is disconnected."""
        with impatient.connect() as sock:
            sock.sendall(sent)
            assert read_status(sock) == status

    def test_idle(self, serve, impatiently):
        """Unless there was nothing to go on with."""
        with serve(wrapper=impatiently("IDLE_S_MAX")).connect() as sock:
            assert read_status(sock) == 0

    def test_others(self, impatient):
        """Other clients are not affected; the memory for the missing bodies is free again."""
        before = impatient.shared_bytes()
        with ExitStack() as slow:
            for _ in range(50):
                sock = slow.enter_context(impatient.connect())
                sock.sendall(infer_head(4 * MIB)[0])
            contents = np.arange(1000).tobytes()
            with impatient.connect() as sock:
                sock.sendall(b"".join(infer_head(len(contents))) + contents)
                with http.client.HTTPResponse(sock) as response:
                    response.begin()
                    assert response.status == 200
                    assert response.read().endswith(contents)
        for _ in range(3):
            assert impatient.is_ready()
        assert impatient.shared_bytes() <= before + 260 * MIB  # kept for the next requests


def test_many_bodies_that_never_come(server):
    """A thousand heads reserve no more memory than a few, and clients that do send are served."""
    size = 60 * MIB
    head, _ = infer_head(size)
    before = server.shared_bytes()
    with ExitStack() as clients:
        for _ in range(100):
            clients.enter_context(server.connect()).sendall(head)
        array = np.arange(MIB)
        assert np.array_equal(server.infer("identity", {"IN": array}).as_numpy("OUT"), array)
        assert server.shared_bytes() <= before + (1 << 30) + 20 * size


@pytest.mark.parametrize(
    ("path", "status"), [("/v2/repository/models/identity/load", 400), ("/v2/models/identity/infer", 400), ("/no", 404)]
)
def test_client_that_reads_only_after_it_has_sent_everything(server, path, status):
    """It reads why it is refused, however much it has sent: it is not reset."""
    piece = bytes(MIB)
    with server.connect() as sock:
        sock.sendall(f"POST {path} HTTP/1.1\r\nHost: any\r\nContent-Length: {2000 * MIB}\r\n\r\n".encode())
        for _ in range(2000):
            sock.sendall(piece)
        assert read_status(sock) == status


def test_large_body_while_memory_is_promised_to_others(server):
    """It is received all the same."""
    head, _ = infer_head(60 * MIB)
    array = np.arange(4 * MIB)
    with ExitStack() as clients:
        for _ in range(30):
            clients.enter_context(server.connect()).sendall(head)
        for _ in range(2):
            assert np.array_equal(server.infer("identity", {"IN": array}).as_numpy("OUT"), array)


@pytest.mark.parametrize("says", [b"", b"GET /v2/health/li", b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: a\r\n"])
def test_health_while_others_connect_and_say_nothing(tmp_path, model, serving, wait_until, says):
    """A probe with a connection of its own is answered, however many others take places and ask nothing."""
    model("identity", ECHO)
    with serving(tmp_path, wrapper=POOR) as server, ExitStack() as clients:

        def crowd(count):
            for _ in range(count):
                sock = clients.enter_context(server.connect())
                with suppress(ConnectionError):
                    sock.sendall(says)

        def is_full():
            crowd(10)
            with server.connect() as sock:
                sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n")
                return read_status(sock) == 503

        wait_until(is_full)
        for probe in range(50):
            crowd(10)
            with server.connect() as sock:
                crowd(5)
                sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n")
                assert read_status(sock) == 200, probe


def test_too_many_connections(tmp_path, model, serving, wait_until):
    """Connections beyond the limit are refused, existing ones stay, and closed ones make room."""
    model("identity", ECHO)
    with serving(tmp_path, wrapper=POOR) as server:
        with ExitStack() as clients:
            first = clients.enter_context(server.connect())
            socks = [clients.enter_context(server.connect()) for _ in range(300)]

            def refused():
                found = []
                for sock in socks:
                    sock.setblocking(False)
                    with suppress(BlockingIOError, ConnectionError):
                        found.append(sock.recv(1 << 10, socket.MSG_PEEK))
                return [each for each in found if each.startswith(b"HTTP/1.1 503 ")]

            wait_until(lambda: len(refused()) > 100)
            first.sendall(READY)
            assert first.recv(1 << 10).startswith(b"HTTP/1.1 200 OK\r\n")
            assert server.request("GET", "/metrics", port=server.metrics_port).status == 200
        wait_until(server.is_ready)
        array = np.arange(10)
        assert np.array_equal(server.infer("identity", {"IN": array}).as_numpy("OUT"), array)


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"POST /v2 HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + READY, [405]),
        (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
        (b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + READY, [400]),
        (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + READY, [400]),
        (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n" + READY, [405, 200]),
        (b"GET /v2/health/live HTTP/1.1\r\nA: b\r\n folded\r\n\r\n" + READY, [400]),
        (b"GET /v2/health/live HTTP/1.1\r\nA: b\0\r\n\r\n" + READY, [400]),
        (b"GET /v2/health/live\r\n\r\n" + READY, [400]),
        (b"GET http://any/v2/health/live HTTP/1.1\r\n\r\n" + READY, [200, 200]),
        (b"HEAD /v2/health/live HTTP/1.1\r\n\r\n" + READY, [405, 200]),
        (b"GET /v2/health/live HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n" + READY, [431]),
        (b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n" + READY, [200]),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
        (b"\x16\x03\x01\x02\x00\x01\x00", [400]),
        (b"GET /v2 HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n" + READY, [200, 200]),
    ],
)
def test_bytes_that_could_mean_two_things(server, data, statuses):
    """They mean one, or they are refused. Nothing is read behind a refusal, nor behind chunks with a length."""
    with server.connect() as sock:
        sock.sendall(data)
        if statuses[-1] == 200:
            sock.shutdown(socket.SHUT_WR)
        found = b""
        # A client that is refused while it sends may be disconnected after its answer.
        with suppress(ConnectionResetError):
            while data := sock.recv(1 << 16):
                found += data
    assert [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", found)] == statuses
    assert server.is_ready()
