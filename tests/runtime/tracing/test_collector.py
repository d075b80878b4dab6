# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pyruntime.runtime.tracing import collector as module
from pyruntime.runtime.tracing.buckets import Write
from pyruntime.runtime.tracing.collector import SERVICE_NAME, Collector


@contextmanager
def receiver(*statuses):
    """A collector that answers with these statuses, and then with 200: (its address, the requests that came)."""
    left = list(statuses)
    came = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            came.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(left.pop(0) if left else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", came
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def write(traces, spans):
    trace = traces.trace(spans=spans[0])
    trace.note("REQUEST_START", 1)
    return Write([trace], apart=False)


@pytest.fixture
def at_once(monkeypatch):
    """No time passes between attempts."""
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.0, 0.0))


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_sent(write, scheme):
    """Spans are posted as OTLP in JSON, to an address with a scheme or, as in Triton, without one."""
    with receiver() as (address, came):
        collector = Collector(f"{scheme}{address}/v1/traces", [("a", "b")], "1.2")
        assert collector.size(write) == 3
        collector.write([write], threading.Event())
    ((path, headers, body),) = came
    assert (path, headers["Content-Type"], headers["User-Agent"]) == ("/v1/traces", "application/json", "pyruntime/1.2")
    assert b'"REQUEST_START"' in body
    assert SERVICE_NAME.encode() in body


def test_resource(write):
    """The operator's attributes stand for those that are there anyway."""
    with receiver() as (address, came):
        Collector(address, [("service.name", "mine")], "1").write([write], threading.Event())
    assert b'"mine"' in came[0][2]
    assert SERVICE_NAME.encode() not in came[0][2]


def test_again(write, at_once, caplog):
    """A collector that is busy is asked again, and nothing is lost or sent twice."""
    with receiver(503, 429) as (address, came):
        Collector(address, [], "1").write([write], threading.Event())
    assert len(came) == 3
    assert messages(caplog) == []


def test_refused(write, at_once, caplog):
    """Traces that a collector refuses are not sent again; the loss is logged once."""
    with receiver(400, 400) as (address, came):
        collector = Collector(f"user:secret@{address}", [], "1")
        collector.write([write], threading.Event())
        collector.write([write], threading.Event())
        with caplog.at_level("INFO"):
            collector.write([write], threading.Event())
    assert [headers["Authorization"] for _, headers, _ in came] == ["Basic dXNlcjpzZWNyZXQ="] * 3
    assert messages(caplog) == [
        f"traces are lost, because the collector at {address} does not take them: it answered with 400",
        f"the collector of traces at {address} takes them again",
    ]


def test_nobody_there(write, at_once, caplog, reserve_ports):
    """Without a listener the traces are lost, after some attempts."""
    with reserve_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        Collector(address, [], "1").write([write], threading.Event())
    (message,) = messages(caplog)
    assert message.startswith(f"traces are lost, because the collector at {address} does not take them: ")
    assert "refused" in message


def test_not_while_closing(write, caplog):
    """A server that stops does not wait for a collector that is busy."""
    closing = threading.Event()
    closing.set()
    with receiver(503) as (address, came):
        Collector(address, [], "1").write([write], closing)
    assert len(came) == 1
