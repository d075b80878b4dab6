# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Backends that do not come back from a call: the server ends all the same, in the time that it was given."""

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import numpy as np
import pytest
from geventhttpclient.response import HTTPConnectionClosed

CONFIG = """
backend: "hang"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
EXPLICIT = "--model-control-mode=explicit"


@pytest.fixture(scope="module")
def backends(install_backends):
    """The option that says where the backends are."""
    return f"--backend-directory={install_backends('hang')}"


@pytest.fixture
def threads():
    """Where clients wait for what does not come."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


def ask(server, method, *arguments):
    """The result of a call by a client of its own, because two threads may not share one."""
    with closing(server.client()) as client:
        return getattr(client, method)(*arguments)


@pytest.mark.parametrize("name", ["initialize", "instance_initialize"])
def test_while_it_loads(serve, model, backends, wait_until, threads, name):
    """A load that does not come to an end is given up."""
    model(name, None, CONFIG)
    server = serve(backends, EXPLICIT, "--exit-timeout-secs=1")
    loading = threads.submit(ask, server, "load_model", name)
    wait_until(lambda: "hangs from here on" in server.log)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    assert loading.exception() is not None


@pytest.mark.parametrize("name", ["finalize", "instance_finalize"])
def test_while_it_unloads(serve, model, backends, wait_until, name):
    """A model that does not come to an end is left behind, and the log says so; its name can be used again."""
    model(name, None, CONFIG)
    server = serve(backends, EXPLICIT, f"--load-model={name}", "--exit-timeout-secs=1")
    with closing(server.client()) as client:
        client.unload_model(name)
        wait_until(lambda: "it did not come back within 1 s, and is left behind" in server.log)
        client.load_model(name)
        assert client.is_model_ready(name)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 0


def test_while_it_says_whether_it_is_ready(serve, model, backends, wait_until, threads):
    """A model that does not answer is not ready, and does not hold up the end."""
    model("ready", None, CONFIG)
    server = serve(backends, EXPLICIT, "--exit-timeout-secs=1")
    ask(server, "load_model", "ready")
    ready = threads.submit(ask, server, "is_model_ready", "ready")
    wait_until(lambda: "hangs from here on" in server.log)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    with suppress(OSError, HTTPConnectionClosed):  # it may be cut off instead
        assert not ready.result()


def test_the_second_signal(serve, model, backends, wait_until, threads):
    """The second signal ends the wait for a backend that hangs."""
    model("execute", None, CONFIG)
    server = serve(backends)
    asked = threads.submit(server.infer, "execute", {"INPUT0": np.array([7], np.int32)})
    wait_until(lambda: "hangs from here on" in server.log)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "Signal (15) received." in server.log)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 1
    assert asked.exception() is not None
    assert "What does not end is left behind" in server.log
