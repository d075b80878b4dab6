# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What an open page asks for, over connections that note written data: see conftest.py."""

import json
import logging

import pytest

from pyruntime.runtime.frontends.http.connection import HttpConnection
from pyruntime.runtime.frontends.http.request_head import HeadReader
from pyruntime.runtime.settings import Restriction

HERE, ELSEWHERE = ("127.0.0.1", 40000), ("10.0.0.7", 40000)


@pytest.fixture
def ask(server, monkeypatch):
    """`ask(path, document, headers, peer, restrictions)`: the status and the document of the answer."""

    def ask(path, document=None, headers=b"Host: localhost:8000", peer=HERE, restrictions=None):
        server.read_head = HeadReader(restrictions).read
        transport = server.connect()
        monkeypatch.setattr(
            transport, "get_extra_info", lambda name: peer if name == "peername" else transport, raising=False
        )
        body = b"" if document is None else json.dumps(document).encode()
        transport.feed(b"POST %b HTTP/1.1\r\n%b\r\nContent-Length: %d\r\n\r\n%b" % (path, headers, len(body), body))
        ((status, _, answer),) = transport.responses()
        assert server.is_idle()
        return status, json.loads(answer)

    return ask


@pytest.fixture
def tail(server, monkeypatch):
    monkeypatch.setattr(logging.getLogger("pyruntime"), "level", logging.INFO)
    server.state.log_tail.attach()
    yield logging.getLogger("pyruntime.test")
    server.state.log_tail.detach()


def test_document(server, ask):
    """States, counters and instances of all versions, and what the server does now."""
    server.model.statistics.success(2, 10, 20, 30, 40, 100)
    server.instance.restarts, server.instance.response_bytes = 3, 64
    status, document = ask(b"/page/watch")
    assert status == 200
    assert document["models"] == [{"name": name, "version": "1", "state": "READY", "reason": ""} for name in ("d", "m")]
    about = document["server"]
    assert (about["name"], about["control"], about["exiting"], about["in_flight"]) == ("triton", "none", False, 1)
    assert 0 < about["began_ms"] <= about["now_ms"]
    assert document["closed"] == {}
    (version,) = [each for each in document["versions"] if each["name"] == "m"]
    assert version["since_ms"] > 0
    assert (version["success"], version["failure"], version["inferences"], version["executions"]) == (1, 0, 2, 0)
    assert version["ns"] == {"total": 100, "queue": 10, "input": 20, "infer": 30, "output": 40}
    assert version["memory"] >= 64
    assert version["instances"] == [{"name": "m_0", "state": "ready", "restarts": 3, "down": ""}]


def test_log(tail, ask):
    """The lines that the page does not have yet."""
    tail.info("one")
    tail.warning("two")
    _, document = ask(b"/page/watch", {"log_after": 1})
    ((number, time_ms, level, file, _, message),) = document["log"]
    assert (number, level, file, message) == (2, "W", "test_watch.py", "two")
    assert time_ms > 0
    assert [line[-1] for line in ask(b"/page/watch")[1]["log"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("headers", "peer", "restrictions", "sees"),
    [
        (b"Host: localhost:8000", HERE, {}, True),
        (b"Host: localhost:8000", ELSEWHERE, {}, False),
        (b"Host: localhost:8000", "", {}, False),
        (b"Host: example.org", HERE, {}, False),
        (b"Host: localhost:8000\r\nX-Forwarded-For: 10.0.0.7", HERE, {}, False),
        (b"Host: localhost:8000\r\nOrigin: http://example.org", HERE, {}, False),
        (b"Host: localhost:8000", HERE, {"logging": Restriction("key", "secret")}, False),
        (b"Host: example.org\r\nkey: secret", ELSEWHERE, {"logging": Restriction("key", "secret")}, True),
        (b"Host: localhost:8000\r\nkey: other", HERE, {"logging": Restriction("key", "secret")}, False),
    ],
)
def test_who_sees_internals(tail, ask, headers, peer, restrictions, sees):
    """Clients on the server's machine; where `logging` is restricted, those that have its header, and no others."""
    tail.info("one")
    _, document = ask(b"/page/watch", headers=headers, peer=peer, restrictions=restrictions)
    assert document["may"]["internals"] is sees
    assert ("log" in document) is sees
    if not sees:
        status, answer = ask(b"/page/stacks", {"model": "m"}, headers, peer, restrictions)
        assert status == 403
        own = "log lines and stacks are for clients on the server's own machine"
        assert answer["error"].startswith("a web page of another site" if b"Origin" in headers else own)


def test_restricted_parts(ask):
    """Each part is of an API, and is left out where that is closed; the page is told the header that opens it."""
    key = Restriction("key", "secret")
    for api, missing in (
        ("statistics", {"versions"}),
        ("model-repository", {"models"}),
        ("metadata", set()),
        ("logging", {"log"}),
    ):
        _, document = ask(b"/page/watch", restrictions={api: key})
        assert document["closed"] == {api: "key"}
        assert {"models", "versions", "log"} - document.keys() == missing
        _, document = ask(b"/page/watch", headers=b"Host: localhost\r\nkey: secret", restrictions={api: key})
        assert document["closed"] == {}
        assert {"models", "versions", "log"} <= document.keys()
    _, document = ask(b"/page/watch", restrictions={"metadata": key, "statistics": key, "model-repository": key})
    assert document["server"].keys() == {"began_ms", "now_ms", "ready", "exiting"}
    assert document["may"]["load"] is False


@pytest.mark.parametrize(
    ("path", "document"),
    [
        (b"/page/watch", {"log_after": "x"}),
        (b"/page/watch", {"log_after": True}),
        (b"/page/watch", []),
        (b"/page/stacks", {}),
        (b"/page/stacks", {"model": 1}),
    ],
)
def test_wrong_bodies(ask, path, document):
    """They are refused."""
    assert ask(path, document)[0] == 400


def test_connection_of_nobody(server):
    """A connection that is lost has no address."""
    transport = server.connect()
    connection = next(iter(server.connections))
    assert isinstance(connection, HttpConnection)
    assert connection.is_local is False
    transport.lose()
    assert connection.is_local is False
