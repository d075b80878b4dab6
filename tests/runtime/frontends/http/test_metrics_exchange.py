# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics port over connections that note written data: see conftest.py."""

import json

import pytest

from pyruntime.runtime.frontends.http.metrics_connection import MetricsConnection
from pyruntime.runtime.frontends.http.request_head import HEAD_BYTES_MAX

PAGE = b"# TYPE n counter\nn 0\n"


def request(target, method=b"GET", body=b""):
    return b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (method, target, len(body), body)


@pytest.fixture
def client(server):
    """A connection to the metrics port of a server whose models made one counter."""
    metrics = server.state.metrics
    metrics.metric("stub", metrics.family("stub", "n", "", "counter"), {}, None)
    return server.connect(MetricsConnection)


@pytest.mark.parametrize("target", [b"/metrics", b"/metrics/", b"/metrics?name=n", b"/metrics/?"])
def test_page(client, server, target):
    """The page is plain text, with a slash behind it or without."""
    client.feed(request(target))
    ((status, headers, body),) = client.responses()
    assert (status, body) == (200, PAGE)
    assert headers == {"content-type": "text/plain; charset=utf-8", "content-length": str(len(PAGE))}
    assert server.is_idle()


@pytest.mark.parametrize("target", [b"/", b"/metric", b"/metrics/x", b"/v2/health/live", b"/v2/models/m", b"*"])
def test_other_paths(client, target):
    """Other paths have an empty response without an error, as in Triton."""
    client.feed(request(target))
    assert client.responses() == [(200, {"content-length": "0"}, b"")]


@pytest.mark.parametrize("target", [b"/metrics", b"/v2/models/m/infer"])
@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS"])
def test_other_methods(client, server, method, target):
    """Other methods are refused for every path; they do not reach a model."""
    client.feed(request(target, method, b"{}"))
    ((status, headers, body),) = client.responses()
    assert (status, json.loads(body)) == (405, {"error": "Method Not Allowed"})
    assert headers["content-type"] == "application/json"
    assert server.instance.jobs == []


def test_many_scrapes(client, server):
    """One connection serves all the scrapes of a client, and the page is that of the moment."""
    client.feed(request(b"/metrics") + request(b"/metrics/"))
    server.state.metrics.drop_owner("stub")
    client.feed(request(b"/metrics"))
    assert [body for _, _, body in client.responses()] == [PAGE, PAGE, b""]
    assert not client.closed
    assert server.is_idle()


def test_while_the_server_exits(client, server):
    """Metrics can be read to the end."""
    server.state.exiting = True
    client.feed(request(b"/metrics"))
    assert client.statuses() == [200]


def test_not_at_the_other_port(server):
    """Clients of HTTP do not see the page, even of a URL that the metrics port has just had."""
    server.connect(MetricsConnection).feed(request(b"/metrics"))
    transport = server.connect()
    transport.feed(request(b"/metrics"))
    assert transport.statuses() == [404]


def test_nothing_of_http_here(server):
    """The URLs of the HTTP port do not exist here, even right after it has served them."""
    transports = server.connect(), server.connect(MetricsConnection)
    for transport in transports:
        transport.feed(request(b"/v2"))
    assert [len(transport.responses()[0][2]) > 0 for transport in transports] == [True, False]


def test_what_is_no_request(client):
    """It is refused as it is anywhere."""
    client.feed(b"nonsense\r\n\r\n")
    assert client.statuses() == [400]
    assert client.closed


def test_long_head(server):
    """A head that is too long is refused, in one piece or without an end."""
    for end in (b"\r\n\r\n", b""):
        client = server.connect(MetricsConnection)
        client.feed(b"GET /metrics HTTP/1.1\r\nA: " + b"a" * HEAD_BYTES_MAX + end)
        assert client.statuses() == [431]
