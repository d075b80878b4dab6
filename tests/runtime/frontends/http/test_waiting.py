# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that keep a connection waiting, and the memory that they may hold meanwhile: see conftest.py."""

import json

import numpy as np
import pytest

from pyruntime.runtime.frontends.common.client_timeouts import BODY_STALLED_S_MAX, HEAD_S_MAX, IDLE_S_MAX
from pyruntime.runtime.frontends.common.connection_limits import ConnectionLimit
from pyruntime.runtime.frontends.common.health_places import HEALTH_CONNECTIONS_MAX
from pyruntime.runtime.frontends.http import connection as http_connection
from pyruntime.runtime.frontends.http.connection import HttpConnection
from pyruntime.runtime.frontends.http.lingering import LINGER_S_MAX, LINGER_SILENT_S_MAX
from pyruntime.runtime.frontends.http.metrics_connection import METRICS_CONNECTIONS_MAX, MetricsConnection
from pyruntime.runtime.frontends.http.request_head import HeadReader
from pyruntime.runtime.inference import intake

# Where a request on the wire has them.
PARAMETERS = 5

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"


def binary(count, headers=b""):
    """A request with that many numbers; its head, and its body."""
    contents = np.arange(count, dtype=np.float32).tobytes()
    tensor = {"name": "IN", "shape": [count], "datatype": "FP32", "parameters": {"binary_data_size": len(contents)}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    lengths = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n" % (len(text) + len(contents), len(text))
    return INFER + headers + lengths + b"\r\n", text + contents


class Clock:
    """Has connections checked as time goes by."""

    def __init__(self, *transports):
        self.connections = [transport._connection for transport in transports]
        self.now = 0.0
        self.go_on(0)

    def go_on(self, seconds, crowded=False):
        self.now += seconds
        for connection in self.connections:
            connection.check(self.now, crowded)


def test_idle_connection(server):
    """It is closed without a word, unless there was a request since."""
    transport = server.connect()
    clock = Clock(transport)
    clock.go_on(IDLE_S_MAX - 1)
    transport.feed(LIVE)
    clock.go_on(1)
    assert not transport.closed
    clock.go_on(IDLE_S_MAX)
    assert transport.closed
    assert transport.statuses() == [200]


def test_idle_connection_when_others_need_a_place(server):
    """It is closed much sooner."""
    transport = server.connect()
    clock = Clock(transport)
    clock.go_on(HEAD_S_MAX)
    assert not transport.closed
    clock.go_on(0, crowded=True)
    assert transport.closed
    assert transport.sent == b""


def test_head_that_trickles(server):
    """However steadily a head comes, it must end."""
    transport = server.connect()
    transport.feed(LIVE[:5])
    clock = Clock(transport)
    for byte in LIVE[5:-5]:
        transport.feed(bytes([byte]))
        clock.go_on(HEAD_S_MAX / len(LIVE))
    assert not transport.closed
    clock.go_on(HEAD_S_MAX)
    ((status, headers, body),) = transport.responses()
    assert (status, headers["connection"]) == (408, "close")
    assert json.loads(body) == {"error": "the request's head takes too long to come in"}
    assert transport.closed
    assert server.is_idle()


def test_heads_that_come_in_pieces(server):
    """Each head has the full time, also the later ones of a connection."""
    transport = server.connect()
    clock = Clock(transport)
    for _ in range(20):
        transport.feed(LIVE[5:] + LIVE[:5] if transport.sent else LIVE + LIVE[:5])
        clock.go_on(HEAD_S_MAX - 1)
    assert not transport.closed
    assert transport.statuses() == [200] * 20


@pytest.mark.parametrize("sent", [0, 5000])
@pytest.mark.parametrize("headers", [b"", b"Expect: 100-continue\r\n"])
def test_body_that_stalls(server, sent, headers):
    """A body of which no more comes is given up, and its memory is free."""
    transport = server.connect()
    head, body = binary(10_000, headers)
    transport.feed(head)
    transport.feed(body[:sent])
    assert server.memory.live == 1
    clock = Clock(transport)
    clock.go_on(BODY_STALLED_S_MAX - 1)
    assert server.memory.live == 1
    clock.go_on(1)
    status, _, answer = transport.responses()[-1]
    assert (status, json.loads(answer)) == (408, {"error": "the request's body takes too long to come in"})
    assert transport.closed
    assert server.is_idle()
    assert server.state.intake.expected_bytes == 0


@pytest.mark.parametrize(
    "head",
    [
        INFER + b"Content-Length: 100000\r\n\r\n",
        INFER + b"Transfer-Encoding: chunked\r\n\r\n" + b"fffff\r\n",
        b"POST /nowhere HTTP/1.1\r\nContent-Length: 100000\r\n\r\n",
    ],
    ids=["sized", "chunked", "refused"],
)
def test_other_bodies_that_stall(server, head):
    """A body that is not received into its slot must not stall either; while data comes it is waited for."""
    transport = server.connect()
    transport.feed(head)
    clock = Clock(transport)
    for _ in range(2):
        transport.feed(b" " * 1000)
        clock.go_on(BODY_STALLED_S_MAX - 1)
    assert not transport.closed
    clock.go_on(BODY_STALLED_S_MAX)
    assert transport.statuses() == [408]
    assert server.is_idle()


def test_body_that_waits_for_us(server):
    """A client that waits for a 100 Continue is not late, nor is one that waits for a model."""
    server.instance.waits = True
    transport = server.connect()
    head, body = binary(10, b"Expect: 100-continue\r\n")
    transport.feed(b"".join(binary(1)) + head)
    clock = Clock(transport)
    clock.go_on(10 * IDLE_S_MAX, crowded=True)
    assert transport.sent == b""
    server.instance.answer()
    transport.feed(body)
    server.instance.answer()
    assert transport.statuses() == [200, 100, 200]


@pytest.mark.parametrize(("rest", "statuses"), [(b"", [200, 200]), (LIVE[:5], [200, 200, 408])], ids=["idle", "head"])
def test_after_a_client_that_did_not_wait_for_us(server, rest, statuses):
    """A client that sends its body without the 100 Continue that it asked for has the same time as others after it."""
    server.instance.waits = True
    transport = server.connect()
    head, body = binary(10, b"Expect: 100-continue\r\n")
    transport.feed(b"".join(binary(1)) + head)
    transport.feed(body)
    server.instance.answer()
    server.instance.answer()
    transport.feed(rest)
    clock = Clock(transport)
    clock.go_on(IDLE_S_MAX)
    assert transport.statuses() == statuses
    assert transport.closed


def test_late_body_behind_another_request(server):
    """A late body is refused after the response to the request before it."""
    server.instance.waits = True
    transport = server.connect()
    head, _ = binary(10)
    transport.feed(b"".join(binary(1)) + head)
    clock = Clock(transport)
    clock.go_on(BODY_STALLED_S_MAX)
    assert transport.sent == b""
    server.instance.answer()
    assert transport.statuses() == [200, 408]
    assert transport.closed
    assert server.is_idle()


def test_nothing_is_read_behind_a_refusal(server):
    """Requests after a refused one are neither executed nor answered."""
    server.instance.waits = True
    transport = server.connect()
    transport.feed(b"".join(binary(1)) + b"hello\r\n\r\n" + LIVE)
    transport.is_paused = False
    transport.feed(LIVE)
    server.instance.answer()
    assert transport.statuses() == [200, 400]


def test_nothing_is_read_behind_a_refused_expectation(server):
    """Its body, if it comes all the same, is not taken for requests, even while an earlier answer is due."""
    server.instance.waits = True
    transport = server.connect()
    refused = b"POST /nowhere HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(LIVE)
    transport.feed(b"".join(binary(1)) + refused)
    transport.feed(LIVE)
    server.instance.answer()
    assert transport.statuses() == [200, 404]
    assert transport.half_closed
    assert server.is_idle()


def test_client_that_goes_on_sending_behind_a_refusal(server):
    """It may send for LINGER_S_MAX, if it pauses for less than LINGER_SILENT_S_MAX; then it is cut off."""
    refused = b"POST /nowhere HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n"
    silent, steady = server.connect(), server.connect()
    for transport in (silent, steady):
        transport.feed(refused)
    clock = Clock(silent, steady)
    clock.go_on(LINGER_SILENT_S_MAX - 1)
    assert not silent.closed
    while not silent.aborted:
        steady.feed(b"x")
        clock.go_on(1)
    while clock.now < LINGER_S_MAX - 1:
        assert not steady.closed
        steady.feed(b"x")
        clock.go_on(1)
    clock.go_on(1)
    assert steady.aborted


def test_client_that_lingers_gives_way(server):
    """A connection on which a refused body still comes counts as idle, so it can be closed for another one."""
    transport = server.connect()
    server.instance.waits = True
    transport.feed(b"".join(binary(1)))
    transport.feed(b"POST /nowhere HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
    assert not transport._connection.is_idle
    server.instance.answer()
    assert transport._connection.is_idle
    transport._connection.close_idle()
    assert transport.closed


def test_tls_at_a_port_without_it(server):
    """The client learns it at once."""
    transport = server.connect()
    transport.feed(b"\x16\x03\x01\x02\x00\x01\x00")
    assert json.loads(transport.responses()[0][2]) == {"error": "this port speaks HTTP without TLS"}
    assert transport.closed


def test_body_of_a_wrong_path(server):
    """The body is discarded, whatever its headers, and the connection is kept."""
    transport = server.connect()
    transport.feed(b"POST /nowhere HTTP/1.1\r\nContent-Encoding: any\r\nContent-Length: 3000000\r\n\r\n")
    transport.feed(b"x" * 3_000_000)
    transport.feed(LIVE)
    assert transport.statuses() == [404, 200]


def test_bodies_that_are_announced(server, monkeypatch):
    """The memory for announced bodies is limited; beyond it a body takes as much as it has sent."""
    head, body = binary(1000)
    monkeypatch.setattr(intake, "EXPECTED_BYTES_MAX", 2 * len(body))
    transports = [server.connect() for _ in range(4)]
    for transport in transports:
        transport.feed(head)
    assert server.memory.live == 2
    assert server.state.intake.expected_bytes == 2 * len(body)
    for transport in transports:
        transport.feed(body)
        assert transport.statuses() == [200]
    assert server.state.intake.expected_bytes == 0
    assert server.is_idle()


def test_a_body_larger_than_all_that(server, monkeypatch):
    """One of them may always have it."""
    head, _ = binary(1000)
    monkeypatch.setattr(intake, "EXPECTED_BYTES_MAX", 1)
    transport = server.connect()
    transport.feed(head)
    assert server.memory.live == 1
    transport.lose()
    assert server.state.intake.expected_bytes == 0
    assert server.is_idle()


def test_too_many_connections(server, monkeypatch):
    """A further connection is refused, one to the metrics port is accepted; a closed connection makes room."""
    limit = ConnectionLimit()
    limit.connections_max = 2
    monkeypatch.setattr(limit, "count", lambda connections: None)
    monkeypatch.setattr(HttpConnection, "_limit", limit)
    monkeypatch.setattr(limit.health, "take", lambda connection, peer: False)
    first, _ = server.connect(), server.connect()
    refused = server.connect()
    ((status, _, body),) = refused.responses()
    assert (status, json.loads(body)) == (503, {"error": "the server has as many connections as it can serve"})
    assert refused.closed
    refused.lose()
    metrics = server.connect(MetricsConnection)
    metrics.feed(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert metrics.statuses() == [200]
    many = [server.connect(MetricsConnection) for _ in range(METRICS_CONNECTIONS_MAX)]
    assert [each.closed for each in many] == [False] * (METRICS_CONNECTIONS_MAX - 1) + [True]
    for each in [metrics, *many]:
        each.lose()
    first.lose()
    transport = server.connect()
    transport.feed(LIVE)
    assert transport.statuses() == [200]


def test_health_beyond_the_limit(server, monkeypatch):
    """At the limit of connections a few more may ask once about health, and about nothing else."""
    limit = ConnectionLimit()
    limit.connections_max = 1
    monkeypatch.setattr(limit, "count", lambda connections: None)
    monkeypatch.setattr(HttpConnection, "_limit", limit)
    first = server.connect()
    for target in (b"/v2/health/live", b"/v2/health/ready"):
        transport = server.connect()
        transport.feed(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target * 2)
        assert transport.statuses() == [200]
        assert transport.closed
        transport.lose()
    refused = server.connect()
    refused.feed(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
    ((status, _, body),) = refused.responses()
    assert (status, json.loads(body)) == (503, {"error": "the server has as many connections as it can serve"})
    assert refused.closed
    refused.lose()
    first.lose()
    assert len(limit.health) == 0


def test_silent_connections_beyond_the_limit(server, monkeypatch):
    """The one that has been silent for longest gives way to a new one; one that has asked does not."""
    limit = ConnectionLimit()
    limit.connections_max = 0
    monkeypatch.setattr(limit, "count", lambda connections: None)
    monkeypatch.setattr(HttpConnection, "_limit", limit)
    unread = set()
    monkeypatch.setattr(http_connection, "has_unread", unread.__contains__)
    many = [server.connect() for _ in range(HEALTH_CONNECTIONS_MAX)]
    unread.add(many[0])
    many[1].feed(b"GET /v2/health/re")
    found = [server.connect() for _ in range(2)]
    assert [each.closed for each in many] == [False, True, True] + [False] * (HEALTH_CONNECTIONS_MAX - 3)
    assert [many[at].statuses() for at in range(3)] == [[], [503], [503]]
    unread.update(many, found)
    assert server.connect().closed
    for each in (many[0], *found):
        each.feed(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
        assert each.statuses() == [200]
    for each in [*many, *found]:
        each.lose()
    assert len(limit.health) == 0


def test_forwarded_headers(server):
    """They are parameters of inferences, which are not taken for each other; a reserved name is refused."""
    server.read_head = HeadReader(pattern="^(x-|timeout)").read
    server.instance.waits = True
    transport = server.connect()
    for headers in (b"X-A: 1\r\n", b"X-A: 2\r\n", b""):
        transport.feed(b"".join(binary(1, headers)))
    document = {"IN": [1], "X-A": "3"}
    text = json.dumps(document).encode()
    transport.feed(b"POST /v2/models/m/generate HTTP/1.1\r\nx-b: 4\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
    parameters = [job.options.parameters for job in server.instance.jobs]
    assert parameters == ['{"X-A":"1"}', '{"X-A":"2"}', "", '{"X-A":"3","x-b":"4"}']
    server.instance.answer()
    transport.feed(b"".join(binary(1, b"Timeout: 1\r\n")))
    status, _, body = transport.responses()[-1]
    assert (status, json.loads(body)) == (
        400, {"error": "Header 'Timeout' is reserved for Triton usage and cannot be forwarded."},
    )  # fmt: skip
    assert server.is_idle()


def test_requests_with_forwarded_headers_are_read_by_native_code(server, monkeypatch):
    server.read_head = HeadReader(pattern="^(x-|timeout)").read
    server.instance.waits = True
    monkeypatch.setattr(server.state.intake, "submit", None)
    transport = server.connect()
    text = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[1]}],"parameters":{"a":1,"X-B":2}}'
    in_json = b"POST /v2/models/m/infer HTTP/1.1\r\n%b: 3\r\nContent-Length: %d\r\n\r\n%b"
    transport.feed(b"".join(binary(1, b"X-A: 1\r\n")))
    transport.feed(in_json % (b"X-B", len(text), text))
    transport.feed(in_json % (b"Timeout", len(text), text))
    parameters = [job.options.parameters for job in server.instance.jobs]
    assert parameters == ['{"X-A":"1"}', '{"a":1,"X-B":"3"}']
    server.instance.answer()
    assert transport.statuses() == [200, 200, 400]
    assert server.is_idle()
