# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Verbose lines about requests."""

import logging
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.common.request_log import SHOWN_LENGTH_MAX, LoggedConnection, request_line
from pyruntime.runtime.frontends.grpc.call import Call
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.status import Status

LIVE = b"GET /v2/health/live?token=secret HTTP/1.1\r\n\r\n"


@pytest.fixture
def lines(caplog):
    """The verbose lines so far, with x for each time."""
    caplog.set_level(logging.DEBUG, "pyruntime.frontends")
    return lambda: [re.sub(r"[0-9.]+ ms", "x ms", record.getMessage()) for record in caplog.records]


@pytest.fixture
def verbose(server):
    server.state.log_settings.verbose = True
    yield server
    server.state.log_settings.verbose = False


class TestHttp:
    def test_nothing_while_they_are_off(self, server, lines):
        """While the lines are off, an exchange is connected directly to its connection."""
        transport = server.connect()
        transport.feed(LIVE)
        assert transport.statuses() == [200]
        assert lines() == []

    def test_one_line_each(self, verbose, lines):
        """Method, path and status, in the order of the answers."""
        transport = verbose.connect()
        transport.feed(LIVE + b"GET /v2/models/unknown HTTP/1.1\r\n\r\n")
        transport.feed(b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        assert transport.statuses() == [200, 404, 400]
        assert lines() == [
            "HTTP request: GET /v2/health/live -> 200 after x ms",
            "HTTP request: GET /v2/models/unknown -> 404 after x ms",
            "HTTP request: POST /v2/models/m/infer -> 400 after x ms",
        ]

    def test_what_is_no_request(self, verbose, lines):
        """It has no path."""
        transport = verbose.connect()
        transport.feed(b"\x16\x03\x01\r\n\r\n")
        assert transport.statuses() == [400]
        assert lines() == ["HTTP request: what is no request -> 400 after x ms"]

    def test_a_stream(self, verbose, lines):
        """It is logged when it begins, once."""
        transport = verbose.connect()
        body = b'{"IN": [1.0]}'
        transport.feed(
            b"POST /v2/models/d/generate_stream HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        verbose.decoupled.say(1)
        assert lines() == ["HTTP request: POST /v2/models/d/generate_stream -> a stream after x ms"]
        verbose.decoupled.say(2)
        verbose.decoupled.say(None, final=True)
        assert len(lines()) == 1
        assert transport.statuses() == [200]
        assert verbose.is_idle()

    def test_a_body_that_is_thrown_away(self):
        """The connection learns of it."""
        sizes = []
        LoggedConnection(SimpleNamespace(discarded=sizes.append), None, "").discarded(5)
        assert sizes == [5]


class TestLine:
    @pytest.mark.parametrize(
        ("url", "line"),
        [
            (b"/v2", "GET /v2"),
            (b"/v2?a=b?c", "GET /v2"),
            (b"/v2/models/a%20b", "GET /v2/models/a%20b"),
            (b"/\x1b[2J\x9b\n", r"GET /\x1b[2J\x9b\x0a"),
        ],
    )
    def test_url(self, url, line):
        """The path as it came, but for what would act on a terminal."""
        assert request_line("GET", url) == line

    @given(st.binary())
    def test_any_url(self, url):
        """The line for any URL is printable and has a limited length."""
        line = request_line("GET", url * 100)
        assert line.isprintable()
        assert len(line) <= 4 + 4 * SHOWN_LENGTH_MAX


class _Call(Call):
    def message(self, message, ended):
        self.fail(Status.INTERNAL, "no")

    def ended(self):
        self._leave()

    def _cancel(self):
        pass


class TestGrpc:
    @pytest.fixture
    def connection(self):
        """Notes the calls to a connection, and to its session."""
        said = []
        session = SimpleNamespace(refuse=lambda stream, trailers: said.append(("refuse", stream)))
        return SimpleNamespace(
            session=session,
            over=lambda stream: said.append(("over", stream)),
            said=lambda: said.append("said"),
            call_later=lambda delay_s, call_back: said.append(("later", delay_s)) or (lambda: said.append("never")),
            told=said,
        )

    def test_nothing_while_they_are_off(self, server, connection, lines):
        """While the lines are off, the call uses its connection directly."""
        _Call(server.state, connection, 1, CallHead("/a/B")).ended()
        assert connection.told == [("over", 1)]
        assert lines() == []

    def test_a_call(self, verbose, connection, lines):
        """It is logged at its end, and its connection gets the same calls."""
        call = _Call(verbose.state, connection, 1, CallHead("/a/B"))
        call.begin_deadline(2.0)
        call.ended()
        assert connection.told == [("later", 2.0), "never", ("over", 1)]
        assert lines() == ["gRPC call: /a/B ended after x ms"]

    def test_a_call_that_fails(self, verbose, connection, lines):
        """Why is a line of its own."""
        _Call(verbose.state, connection, 1, CallHead("/a/B")).message(b"", True)
        assert connection.told == [("over", 1), ("refuse", 1), "said"]
        assert lines() == ["gRPC call: /a/B fails with status 13: no", "gRPC call: /a/B ended after x ms"]
