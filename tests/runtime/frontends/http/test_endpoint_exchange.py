# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Readiness, whose answer may take a while, over connections that note written data: see conftest.py."""

import json

import pytest

from pyruntime.runtime.settings import ServerSettings

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
NOT_READY = {"error": "Model version not ready"}


def get(path):
    return b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path


MODEL = get(b"/v2/models/m/ready")
SERVER = get(b"/v2/health/ready")


@pytest.fixture
def asked(server):
    """A server whose models take their time to say whether they are ready."""
    server.instance.answers_checks = server.decoupled.answers_checks = False
    return server


@pytest.mark.parametrize("request_", [MODEL, SERVER, get(b"/v2/models/m/versions/1/ready")])
def test_that_is_known_at_once(server, request_):
    """A readiness that is known at once is answered at once."""
    transport = server.connect()
    transport.feed(request_)
    assert [(status, body) for status, _, body in transport.responses()] == [(200, b"")]
    assert server.is_idle()


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 400)])
def test_of_a_model(asked, ready, status):
    """The model is asked, and what follows waits for it."""
    transport = asked.connect()
    transport.feed(MODEL + LIVE)
    assert transport.sent == b""
    asked.instance.answer_check(ready)
    (first, _, body), second = transport.responses()
    assert (first, second[0]) == (status, 200)
    assert body == b"" if ready else json.loads(body) == NOT_READY
    assert asked.is_idle()


def test_of_a_model_that_has_no_instances(server):
    """A model without ready instances is not asked."""
    server.instance.is_ready = False
    transport = server.connect()
    transport.feed(MODEL + SERVER)
    assert [(status, body) for status, _, body in transport.responses()] == [
        (400, b'{"error":"Model version not ready"}'), (400, b""),
    ]  # fmt: skip
    assert server.instance.checks == []


def test_of_a_model_that_nobody_knows(server):
    """It is not found, which is more than not ready."""
    transport = server.connect()
    transport.feed(get(b"/v2/models/nobody/ready") + get(b"/v2/models/m/versions/9/ready"))
    assert transport.statuses() == [404, 404]


@pytest.mark.parametrize(
    ("first", "second", "status"), [(True, True, 200), (True, False, 400), (False, True, 400), (False, False, 400)]
)
def test_of_the_server(asked, first, second, status):
    """All models are asked together, and all of them must say so."""
    transport = asked.connect()
    transport.feed(SERVER)
    assert (len(asked.instance.checks), len(asked.decoupled.checks)) == (1, 1)
    asked.decoupled.answer_check(second)
    assert transport.sent == b""
    asked.instance.answer_check(first)
    assert [(found, body) for found, _, body in transport.responses()] == [(status, b"")]
    assert asked.is_idle()


def test_of_a_server_that_is_not_strict(asked):
    """Models are not asked."""
    asked.state.settings = ServerSettings(model_repositories=("/models",), strict_readiness=False)
    transport = asked.connect()
    transport.feed(SERVER)
    assert transport.statuses() == [200]


def test_of_a_server_that_loads(asked):
    """Models are not asked while others load."""
    asked.state.loaded = False
    transport = asked.connect()
    transport.feed(SERVER)
    assert transport.statuses() == [400]
    assert asked.instance.checks == []


def test_of_a_server_without_models(server):
    """A server without models is ready at once."""
    for name in ("m", "d"):
        server.state.table.begin_unload(name, 1)
        server.state.table.unloaded(name, 1)
    transport = server.connect()
    transport.feed(SERVER)
    assert transport.statuses() == [200]


def test_of_a_server_that_exits(asked):
    """It says so, and a model of its is not ready."""
    asked.state.exiting = True
    transport = asked.connect()
    transport.feed(SERVER + MODEL)
    assert [(status, json.loads(body)) for status, _, body in transport.responses()] == [
        (503, {"error": "Server exiting"}), (400, NOT_READY),
    ]  # fmt: skip


def test_client_that_does_not_wait(asked):
    """A client that has left gets no response, and its requests leave nothing behind."""
    transport = asked.connect()
    transport.feed(MODEL + SERVER)
    assert asked.state.in_flight == 2
    transport.lose()
    assert asked.is_idle()
    for instance in (asked.instance, asked.instance, asked.decoupled):
        instance.answer_check(True)
    assert transport.sent == b""
    assert asked.is_idle()
