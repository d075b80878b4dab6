# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that a model sends to itself, and forgets, come while it executes nothing."""

import os
import signal

import numpy as np
import pytest

INPUT = {"IN": np.arange(3)}
# It has an exception for the first SIGUSR1 that finds it idle, and notes that the handler has run. The client has its
# answer a little before the stub has done with the request.
INTERRUPTED = """
import asyncio


def fail(signum, frame):
    while frame is not None:
        if frame.f_code.co_name in ("execute", "_send"):
            return
        frame = frame.f_back
    signal.signal(signum, signal.SIG_IGN)
    with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "interrupted"), "w"):
        pass
    raise TimeoutError("forgotten")


class TritonPythonModel:
    def initialize(self, args):
        signal.signal(signal.SIGUSR1, fail)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""
READY = """
    def is_ready(self):
        return True
"""
# A task of the model's own keeps its event loop.
BACKGROUND = INTERRUPTED.replace(
    "    def execute(self, requests):\n        return",
    """    async def execute(self, requests):
        self.task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        return""",
)
THREADS = 'parameters { key: "INSTANCE_MODE" value { string_value: "thread" } } instance_group { count: 2 }'
KINDS = {
    "plain": (INTERRUPTED, ""),
    "with a thread that reads": (INTERRUPTED + READY, ""),
    "with an event loop": (BACKGROUND, ""),
    "in threads": (INTERRUPTED, THREADS),
}


def interrupt_when_idle(stub, folder, wait_until):
    """Send signals until the model's handler has found it idle."""

    def is_interrupted():
        os.kill(stub.pid, signal.SIGUSR1)
        return (folder / "interrupted").exists()

    wait_until(is_interrupted)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_of_a_signal_handler_between_requests_fails_the_next_one(model, deploy, kind, wait_until):
    """As in Triton, and no other request."""
    code, more = KINDS[kind]
    folder = model("m", code, more=more)
    server = deploy()
    server.infer("m", INPUT)
    (stub,) = server.stubs()
    interrupt_when_idle(stub, folder, wait_until)
    status, message = server.refusal("m", INPUT)
    assert status == 500
    assert message.startswith("Failed to process the request(s) for model 'm_0")
    assert "message: TimeoutError: forgotten\n" in message
    assert server.infer("m", INPUT).as_numpy("OUT").tolist() == [0, 1, 2]
    assert server.stubs() == [stub]


def test_an_exception_of_a_signal_handler_that_no_request_follows_is_in_the_log(model, serve, wait_until):
    folder = model("m", INTERRUPTED)
    server = serve()
    server.infer("m", INPUT)
    interrupt_when_idle(server.stub("m_0"), folder, wait_until)
    server.stop()
    assert "m_0: a signal handler failed" in server.log
    assert "TimeoutError: forgotten" in server.log
