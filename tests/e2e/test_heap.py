# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that large loads and fast streams took is given back, once they are over."""

import base64
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyruntime.runtime.app import heap

from .harness.models import COUNT, ECHO, IN_OUT

MIB = 1 << 20
FILE_BYTES = 24 * MIB
# What a server may have more, whatever it did.
GROWTH_BYTES_MAX = heap.TRIMMED_BYTES_MIN + 16 * MIB
CLIENTS = 12


def heap_bytes(server):
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@pytest.fixture
def eager(with_limits):
    """A server that looks at its memory all the time."""
    return with_limits(heap, LOOK_S=0.2)


def test_loads(model, serve, eager, wait_until):
    """Twelve loads at once, each small on the wire and large in memory, of which half are refused."""
    model("echo", ECHO)
    server = serve("--model-control-mode=explicit", wrapper=eager)
    contents = base64.b64encode(bytes(FILE_BYTES)).decode()
    config = {"backend": "python", "input": [], "output": []}

    def load(number):
        files = {"file:1/model.py": "" if number % 2 else "no base64!", "file:1/data": contents}
        body = gzip.compress(json.dumps({"parameters": {"config": json.dumps(config), **files}}).encode())
        path = f"/v2/repository/models/m{number}/load"
        return server.request("POST", path, body, {"Content-Encoding": "gzip"}).status

    before = heap_bytes(server)
    with ThreadPoolExecutor(CLIENTS) as clients:
        assert 200 not in set(clients.map(load, range(CLIENTS)))
    wait_until(lambda: heap_bytes(server) - before < GROWTH_BYTES_MAX)


def test_streams(model, serve, eager, wait_until):
    """Many streams as fast as they can be."""
    model("count", COUNT, IN_OUT, "model_transaction_policy { decoupled: true }")
    server = serve(wrapper=eager)
    before = heap_bytes(server)
    with ThreadPoolExecutor(8 * CLIENTS) as clients:
        for events in clients.map(lambda _: server.stream("count", IN=200), range(8 * CLIENTS)):
            assert len(events) == 200
    wait_until(lambda: heap_bytes(server) - before < GROWTH_BYTES_MAX)
