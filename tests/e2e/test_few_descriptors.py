# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A server with fewer descriptors than its models need: those that fit serve, the others say why, and it is alive."""

import json
import re
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pyruntime.runtime import descriptors
from pyruntime.runtime.loaders import python

from .harness.models import ECHO

LIMIT = 192
MODELS = 16
FEW = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh")
REASON = re.compile(
    r"Unavailable: its 1 process needs 12 descriptors in the server, and of 192 only \d+ are left for models\. Unload "
    r"other models, or raise the server's hard limit \(`ulimit -Hn`, or LimitNOFILE= of systemd\)"
)


@pytest.fixture
def server(model, serve, with_limits):
    """It would wait for descriptors for longer than a test may take, if it did."""
    for number in range(MODELS):
        model(f"m{number}", ECHO)
    patient = with_limits(python, LAUNCH_S_MAX=3600.0)
    return lambda *options: serve(*options, wrapper=(*FEW, *patient))


def opened(server):
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_more_models_than_descriptors(server, wait_until):
    """Models that do not fit fail at once with what they need, and clients keep their descriptors, for health too."""
    server = server("--exit-on-error=false", "--strict-readiness=false")
    index = json.loads(server.request("POST", "/v2/repository/index").body)
    states = {row["name"]: row["state"] for row in index}
    ready = [name for name, state in states.items() if state == "READY"]
    assert 0 < len(ready) < MODELS
    assert all(REASON.fullmatch(row["reason"]) for row in index if row["state"] != "READY")
    assert opened(server) <= LIMIT - descriptors.KEPT_FOR_CLIENTS
    refused = next(name for name in states if name not in ready)
    answer = server.request("POST", f"/v2/models/{refused}/infer", b"{}")
    assert answer.status == 404
    assert b"needs 12 descriptors" in answer.body
    # Clients that say nothing take all connections that there are.
    with ExitStack() as clients:
        for _ in range(LIMIT):
            clients.enter_context(server.connect())
        for _ in range(20):
            assert server.request("GET", "/v2/health/live").status == 200
        assert opened(server) < LIMIT
    wait_until(lambda: server.request("GET", "/v2").status == 200)
    assert all(works(server, name) for name in ready)


def works(server, name):
    return np.array_equal(server.infer(name, {"IN": np.array([1, 2])}).as_numpy("OUT"), [1, 2])


def test_room_after_an_unload(server):
    """A model that did not fit is loaded in the place of another one, also while that one still ends."""
    server = server("--model-control-mode=explicit")
    loaded = []
    for name in (f"m{number}" for number in range(MODELS)):
        answer = server.request("POST", f"/v2/repository/models/{name}/load")
        if answer.status != 200:
            break
        loaded.append(name)
    assert answer.status == 400
    assert b"needs 12 descriptors in the server, and of 192 only" in answer.body
    server.request("POST", f"/v2/repository/models/{loaded[0]}/unload")
    assert server.request("POST", f"/v2/repository/models/{name}/load").status == 200
    assert works(server, name)
