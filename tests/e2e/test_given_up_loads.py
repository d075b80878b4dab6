# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Unloads over gRPC while models load: of the model itself, of a model that an ensemble needs, and of the ensemble."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .harness.ensembles import ensemble, step
from .harness.models import GATED

PAIR = ensemble(step("slow", {"IN": "IN"}, {"OUT": "OUT"}))


@pytest.fixture
def gated(model):
    """The folder of a model whose `initialize` waits at its gate."""
    folder = model("slow", GATED)
    os.mkfifo(folder / "gate_initialize")
    return folder


@pytest.fixture
def server(gated, model, serve):
    model("pair", None, PAIR)
    return serve("--model-control-mode=explicit")


@pytest.fixture
def give_up(gated, server, wait_until):
    """`give_up(loaded, unloaded)`: how the load of one model ends, while which another one is unloaded over gRPC."""

    def give_up(loaded, unloaded):
        with ThreadPoolExecutor(1) as clients, closing(server.grpc()) as client:
            load = clients.submit(client.load_model, loaded)
            wait_until((gated / "at_gate").exists)
            client.unload_model(unloaded)
            with pytest.raises(InferenceServerException) as caught:
                load.result()
        return caught.value.status(), caught.value.message()

    return give_up


def load_and_use(server, gated, *names):
    """Load models once the gate is open, and use them."""
    (gated / "gate_initialize").unlink()
    with closing(server.grpc()) as client:
        for name in names:
            client.load_model(name)
            assert server.infer(name, {"IN": np.array([7])}).as_numpy("OUT").tolist() == [7]


def test_a_load_ends_with_the_unload_of_its_model(server, gated, give_up, wait_until):
    message = "failed to load 'slow': it was unloaded while it was loading"
    assert give_up("slow", "slow") == ("StatusCode.UNAVAILABLE", message)
    wait_until(lambda: server.stubs() == [])
    load_and_use(server, gated, "slow")


def test_the_load_of_an_ensemble_ends_with_the_unload_of_its_step(server, gated, give_up, wait_until):
    status, message = give_up("pair", "slow")
    assert status == "StatusCode.INVALID_ARGUMENT"
    because = "ensemble 'pair' depends on 'slow' which has no loaded version"
    assert message.startswith(f"load failed for model 'pair': {because}")
    wait_until(lambda: server.stubs() == [])
    load_and_use(server, gated, "pair", "slow")


def test_the_load_of_an_ensemble_ends_with_its_unload(server, gated, give_up):
    """What it needs goes on loading, as it may be needed for itself."""
    message = "failed to load 'pair': it was unloaded while it was loading"
    assert give_up("pair", "pair") == ("StatusCode.UNAVAILABLE", message)
    (gated / "gate_initialize").write_text("")
    load_and_use(server, gated, "slow", "pair")
