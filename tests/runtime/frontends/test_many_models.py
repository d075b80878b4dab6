# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Pages about very many models are made in turns of the event loop that others have, too."""

import asyncio
import json

import pytest

from pyruntime.runtime.app.metrics import ServerMetrics
from pyruntime.runtime.app.slices import SLICE_PARTS
from pyruntime.runtime.frontends.http.connection import HttpConnection
from pyruntime.runtime.frontends.http.metrics_connection import MetricsConnection
from pyruntime.runtime.observe.metrics import Metrics

MODELS = 20 * SLICE_PARTS
CONFIG = (
    "name: 'm' input { name: 'IN' data_type: TYPE_FP32 dims: -1 } output { name: 'OUT' data_type: TYPE_FP32 dims: -1 }"
)
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def crowded(server, monkeypatch):
    """A server of many models."""
    for attribute, value in (("name", "m_0"), ("restarts", 0), ("response_bytes", 0), ("down", ""), ("is_ready", True)):
        monkeypatch.setattr(type(server.instance), attribute, value, raising=False)
    for number in range(MODELS):
        server._serve(f"model_{number}", CONFIG, server.instance)
    made = ServerMetrics(server.state, lambda: {"http": 1}, None, lambda: (1, 2))
    server.state.metrics = Metrics(made.lines)
    return server


@pytest.mark.parametrize(
    ("connection", "target"), [(MetricsConnection, b"/metrics"), (HttpConnection, b"/v2/models/stats")]
)
def test_others_are_answered_meanwhile(crowded, connection, target):
    """A question that comes after the one for the page is answered before it, and the page has all models."""
    client, other = crowded.connect(connection), crowded.connect()
    turns = 0

    async def main():
        nonlocal turns
        async with asyncio.TaskGroup() as tasks:
            crowded.state.tasks = tasks
            client.feed(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target)
            other.feed(LIVE)
            assert other.statuses() == [200]
            while not client.sent:
                turns += 1
                await asyncio.sleep(0)

    asyncio.run(main())
    assert turns >= MODELS // SLICE_PARTS
    ((status, _, body),) = client.responses()
    assert status == 200
    if connection is MetricsConnection:
        success = [line for line in body.decode().splitlines() if line.startswith("nv_inference_request_success{")]
        assert len(set(success)) == MODELS + 2
    else:
        assert {f"model_{number}" for number in range(MODELS)} <= {
            each["name"] for each in json.loads(body)["model_stats"]
        }
    assert crowded.state.in_flight == 0


def test_a_client_that_leaves(crowded):
    """The page is not finished for nobody's sake with an error."""
    client = crowded.connect(MetricsConnection)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            crowded.state.tasks = tasks
            client.feed(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            client.lose()

    asyncio.run(main())
    assert client.sent == b""
    assert crowded.state.in_flight == 0
