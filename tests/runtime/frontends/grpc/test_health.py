# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Health, asked for once and watched."""

import asyncio

import pytest

from pyruntime.runtime.frontends.common import readiness_watch
from pyruntime.runtime.frontends.grpc.schema import HealthCheckResponse
from pyruntime.utils.errors import Code

from ...event_loops import settle

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


class TestCheck:
    @pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "whatever"])
    def test_whatever_the_service(self, call, service):
        """It is the server that is healthy or not."""
        assert call(CHECK, service=service).status == SERVING
        call.state.loaded = False
        assert call(CHECK, service=service).status == NOT_SERVING

    def test_exiting(self, call):
        """A server that exits is not healthy, and says so."""
        call.state.exiting = True
        assert call(CHECK).status == NOT_SERVING

    def test_models_that_take_their_time(self, call, server):
        """The answer waits for theirs."""
        server.instance.answers_checks = False
        call.begin(CHECK)
        assert call.replies == []
        server.instance.answer_check(False)
        assert [reply.status for reply in call.replies] == [NOT_SERVING]


class TestWatch:
    @pytest.fixture(autouse=True)
    def asks_all_the_time(self, monkeypatch):
        """No test waits for the next question."""
        monkeypatch.setattr(readiness_watch, "INTERVAL_S", 0)

    @pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService"])
    def test_the_server(self, server, open_stream, service):
        """Its health comes at once, and then every change."""

        async def run():
            watch = open_stream(WATCH)
            assert [sent.status for sent in watch(service=service)] == [SERVING]
            watch.stream.client_ended()
            for loaded, expected in [(True, []), (False, [NOT_SERVING]), (False, []), (True, [SERVING])]:
                server.state.loaded = loaded
                watch.sent.clear()
                await settle()
                assert [sent.status for sent in watch.sent] == expected
            watch.stream.cancelled()
            assert watch.end == []

        asyncio.run(run())
        assert readiness_watch._watches == {}

    def test_another_service(self, open_stream):
        """An unknown service is reported as such, and the call goes on."""
        watch = open_stream(WATCH)
        assert [sent.status for sent in watch(service="other")] == [HealthCheckResponse.SERVICE_UNKNOWN]
        watch.stream.client_ended()
        assert watch.end == []
        watch.stream.cancelled()

    def test_without_a_request(self, open_stream):
        """There has to be one."""
        watch = open_stream(WATCH)
        watch.stream.client_ended()
        assert [failure.code for failure in watch.end] == [Code.INTERNAL]

    def test_two_requests(self, open_stream):
        """There must not be another."""
        watch = open_stream(WATCH)
        watch(service="other")
        assert watch(service="other") == []
        assert [failure.code for failure in watch.end] == [Code.INTERNAL]
