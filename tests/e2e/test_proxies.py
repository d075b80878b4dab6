# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Servers behind proxies, which are configured as docs/guides/proxies.md says, or not at all."""

import json
import os
import queue
from contextlib import closing, contextmanager

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.utils

from .harness.models import COUNT, ECHO
from .harness.proxies import proxying, wait_answers

DECOUPLED = "model_transaction_policy { decoupled: true }"
# Sends each line of its gate as soon as it comes.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.gate = args["model_repository"] + "/gate"

    def execute(self, requests):
        (request,) = requests
        sender = request.get_response_sender()
        with open(self.gate) as gate:
            for line in gate:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([int(line)]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# More than any of them takes unasked, and than fits into what lies between two sockets.
LARGE_BYTES = 24 << 20
ORIGIN = "http://models.example"
PROXIES = ("nginx", "haproxy", "caddy", "apache", "envoy")
WITH_GRPC = ("nginx", "haproxy", "caddy", "envoy")
# The server's page has another site for a browser than the server knows.
DEFAULTS = {
    "nginx": "server { listen 8080; location / { proxy_pass http://127.0.0.1:8000; } }",
    "apache": "Listen 8080\nProxyPass / http://127.0.0.1:8000/",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server that knows the site of its proxy, and what it has for models."""
    repository = tmp_path_factory.mktemp("proxied")
    write_model(repository, "echo", ECHO)
    write_model(repository, "count", COUNT, more=DECOUPLED)
    write_model(repository, "gated", GATED, more=DECOUPLED)
    options = ("--model-control-mode=explicit", "--load-model=*", f"--http-public-origin={ORIGIN}")
    with serving(repository, *options) as server:
        server.repository = repository
        yield server


@pytest.fixture(scope="module")
def behind(server, tmp_path_factory, reserve_ports):
    """`with behind(kind) as proxied`: the server behind a proxy of this kind, maybe with another configuration."""

    @contextmanager
    def start(kind, configuration=None):
        with proxying(kind, server, tmp_path_factory.mktemp(kind), reserve_ports, configuration) as (proxied, process):
            wait_answers(proxied, process)
            yield proxied

    return start


def assert_streams(server, proxied):
    """Each event arrives before the model goes on."""
    gate = server.repository / "gated" / "gate"
    os.mkfifo(gate)
    lines = os.open(gate, os.O_RDWR)  # which waits for no reader
    try:
        os.write(lines, b"0\n")
        with proxied.streaming("gated", IN=0) as events:
            assert next(events)["OUT"] == 0
            os.write(lines, b"1\n")
            assert next(events)["OUT"] == 1
            os.close(lines)
            lines = -1
            assert list(events) == []
    finally:
        if lines >= 0:
            os.close(lines)
        gate.unlink()


@pytest.mark.parametrize("kind", PROXIES)
def test_http(kind, server, behind):
    """Tensors of any size, the page, its document, and streams whose events arrive one by one."""
    large = np.arange(LARGE_BYTES // 8)
    with behind(kind) as proxied:
        for array in (np.arange(3), large):
            np.testing.assert_array_equal(proxied.infer("echo", {"IN": array}).as_numpy("OUT"), array)
        assert [event["OUT"] for event in proxied.stream("count", IN=100)] == list(range(100))
        assert b"<title>" in proxied.request("GET", "/").body
        assert proxied.request("GET", "/openapi.json").status == 200
        assert proxied.request("GET", "/v2/nowhere").status == 404
        assert_streams(server, proxied)


@pytest.mark.parametrize("kind", WITH_GRPC)
def test_grpc(kind, behind):
    """Requests of any size, a stream, and the health service."""
    large = np.arange(LARGE_BYTES // 8)
    responses = queue.SimpleQueue()
    with behind(kind) as proxied, closing(proxied.grpc()) as client:
        assert client.is_server_ready()
        for array in (np.arange(3), large):
            tensor = tritonclient.grpc.InferInput("IN", list(array.shape), "INT64").set_data_from_numpy(array)
            np.testing.assert_array_equal(client.infer("echo", [tensor]).as_numpy("OUT"), array)
        client.start_stream(lambda result, error: responses.put((result, error)))
        count = tritonclient.grpc.InferInput("IN", [1], "INT64").set_data_from_numpy(np.array([3]))
        client.async_stream_infer("count", [count])
        for number in range(3):
            result, error = responses.get()
            assert error is None
            assert result.as_numpy("OUT") == [number]
        client.stop_stream()


@pytest.mark.parametrize("kind", PROXIES)
def test_changes_from_the_page(kind, behind):
    """The page changes the server as it does without a proxy; pages of other sites do not."""
    with behind(kind) as proxied:
        site = f"http://127.0.0.1:{proxied.port}"
        for headers, status in (({"Origin": site}, 200), ({"Origin": "http://evil.example"}, 403), ({}, 200)):
            assert proxied.request("POST", "/v2/logging", "{}", headers).status == status


@pytest.mark.parametrize("kind", PROXIES)
def test_clients_of_other_machines(kind, behind):
    """The server shows no log to the clients of a proxy on its own machine."""
    with behind(kind) as proxied:
        assert proxied.request("POST", "/page/stacks", '{"model": "echo"}').status == 403


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults(kind, server, behind):
    """What a proxy does with one line: streams arrive event by event, and a page of the named site changes things."""
    with behind(kind, DEFAULTS[kind]) as proxied:
        assert_streams(server, proxied)
        own = {"Origin": f"http://127.0.0.1:{proxied.port}"}
        refusal = proxied.request("POST", "/v2/logging", "{}", own)
        assert refusal.status == 403
        assert "--http-public-origin" in json.loads(refusal.body)["error"]
        assert proxied.request("POST", "/v2/logging", "{}", {"Origin": ORIGIN}).status == 200


# haproxy asks the port of gRPC itself, in HTTP/2 and without a host: the health service, which gets no message.
CHECKED_BY_GRPC = """
defaults
    log stderr format raw local0
    option log-health-checks
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h

frontend http
    bind :8080
    default_backend http

backend http
    server one 127.0.0.1:8000

frontend grpc
    bind :8081 proto h2
    default_backend grpc

backend grpc
    option httpchk
    http-check send meth POST uri /grpc.health.v1.Health/Check ver HTTP/2 hdr content-type application/grpc
    http-check expect hdr name "grpc-status" value "{status}"
    server one 127.0.0.1:8001 proto h2 check check-proto h2 inter 100ms fall 1 rise 1
"""


@pytest.mark.parametrize(("status", "found"), [(13, "succeeded"), (99, "failed")])
def test_the_health_checks_of_haproxy_reach_the_port_of_grpc(
    server, tmp_path_factory, reserve_ports, wait_until, status, found
):
    """The service says what is wrong with the check (13), which is an answer; an expectation of another one fails."""
    folder = tmp_path_factory.mktemp("checked")
    configuration = CHECKED_BY_GRPC.format(status=status)
    with proxying("haproxy", server, folder, reserve_ports, configuration) as (proxied, process):
        wait_answers(proxied, process)
        wait_until(lambda: "Health check for server grpc/one" in (folder / "log").read_text())
        assert f"Health check for server grpc/one {found}" in (folder / "log").read_text()
        with closing(proxied.grpc()) as client:
            if found == "succeeded":
                assert client.is_server_live()
            else:
                with pytest.raises(tritonclient.utils.InferenceServerException, match="UNAVAILABLE"):
                    client.is_server_live()


@pytest.mark.parametrize("kind", ["haproxy", "caddy", "envoy"])
def test_a_server_that_is_not_ready(kind, model, serve, wait_until, tmp_path_factory, reserve_ports):
    """A proxy that asks for health answers for the server until its models are loaded."""
    model("echo", "raise ValueError")
    server = serve("--exit-on-error=false", ready=False)
    wait_until(lambda: "loading" in server.log)
    folder = tmp_path_factory.mktemp(kind)
    with proxying(kind, server, folder, reserve_ports) as (proxied, process):

        def is_refused():
            assert process.poll() is None
            try:
                return proxied.request("GET", "/v2/health/live").status == 503
            except OSError:
                return False

        wait_until(is_refused)
        assert server.request("GET", "/v2/health/live").status == 200
