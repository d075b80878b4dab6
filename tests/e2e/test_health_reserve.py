# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Probes of a server that has as many connections as it can serve, while clients connect that ask nothing."""

import socket
from contextlib import ExitStack, suppress
from functools import partial

import grpc
import h2.config
import h2.connection
import pytest
import tritonclient.grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from .harness.http2_client import BareClient
from .harness.models import ECHO
from .harness.waiting import LIMIT_S

# A server that has few descriptors.
POOR = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")
# Probes come from another address than the crowd, if they are not of the same peer.
CROWD = "127.0.0.2"


def open_stream():
    """What a client of gRPC sends that begins a stream of inferences, and says nothing on it."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    head = {":method": "POST", ":scheme": "http", ":path": BareClient.STREAM, ":authority": "a"}
    client.send_headers(1, list((head | {"content-type": "application/grpc", "te": "trailers"}).items()))
    return client.data_to_send()


def ask_http(server, path):
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as sock:
        return answer(sock, path)


def answer(sock, path):
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n".encode())
    with sock.makefile("rb") as stream:
        return int(stream.read().split()[1])


def ask_grpc_health(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def ask_triton(server, method):
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        return getattr(client, method)(client_timeout=LIMIT_S)


PROBES = {
    "GET live": lambda server: ask_http(server, "/v2/health/live") == 200,
    "GET ready": lambda server: ask_http(server, "/v2/health/ready") == 200,
    "Check": ask_grpc_health,
    "ServerLive": partial(ask_triton, method="is_server_live"),
    "ServerReady": partial(ask_triton, method="is_server_ready"),
}


class Crowd:
    """Clients that connect, say the same, and wait."""

    def __init__(self, port, says):
        self.address = ("127.0.0.1", port)
        self.says = says
        self.clients = ExitStack()

    def grow(self, count):
        for _ in range(count):
            with suppress(ConnectionError):  # it had to go at once
                sock = socket.create_connection(self.address, LIMIT_S, source_address=(CROWD, 0))
                self.clients.enter_context(sock)
                sock.sendall(self.says)

    def fill(self, server):
        self.grow(10)
        return ask_http(server, "/v2") == 503


@pytest.fixture(
    params=[("port", b""), ("port", b"GET /v2/health/li"), ("grpc_port", b""), ("grpc_port", open_stream())],
    ids=["silent", "half a head", "silent gRPC", "open streams"],
)
def crowded(request, tmp_path, model, serving, wait_until):
    """A server whose connections are those of a crowd, and the crowd."""
    model("identity", ECHO)
    which, says = request.param
    with serving(tmp_path, wrapper=POOR) as server:
        crowd = Crowd(getattr(server, which), says)
        with crowd.clients:
            wait_until(lambda: crowd.fill(server))
            yield server, crowd


def test_every_probe_is_answered(crowded):
    """However many connect between two probes, each over a connection of its own."""
    server, crowd = crowded
    for _ in range(10):
        for name, probe in PROBES.items():
            crowd.grow(20)
            assert probe(server), name


def test_a_probe_that_is_slow_to_ask_is_answered(crowded):
    """Those that connect meanwhile take each other's places."""
    server, crowd = crowded
    for path in ("/v2/health/live", "/v2/health/ready"):
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as sock:
            crowd.grow(100)
            assert answer(sock, path) == 200
