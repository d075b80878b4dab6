# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The answers to requests of native code in a stub: one that cannot be handed over is an error, and more may come."""

from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from pyruntime.backends.native.calls import Calls
from pyruntime.backends.native.gpu_outputs import NativeGpuOutputs
from pyruntime.stub.pb_utils import InferenceResponse, TritonModelException
from pyruntime.utils.errors import Code

WAIT_S = 60


class GivenAnswers:
    """Answers that are known before; one that is an exception is raised."""

    def __init__(self, outcomes):
        self.finished = False
        self._outcomes = list(outcomes)

    def next(self):
        """See host.Answers."""
        outcome = self._outcomes.pop(0)
        self.finished = not self._outcomes
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class MadeCall:
    """A request as native code makes it. `respond` refuses numbers as the extension does."""

    method = "infer"
    arguments = (1, "callee", -1, "", 0, 0, 0, 0, {}, [], None, "")

    def __init__(self):
        self.responses = SimpleQueue()

    def answer(self, result):
        """The request is taken."""

    def respond(self, final, outputs, parameters, failure, model, version, done):
        """One response."""
        if any(value >= 1 << 63 for value in parameters.values()):
            raise OverflowError("too large")
        self.responses.put((final, parameters, failure))


def response(number):
    """A response that its parameter identifies."""
    return InferenceResponse._from_wire([], f'{{"number": {number}}}')


@pytest.fixture
def ask():
    """`ask(*outcomes)`: the responses to a request that is answered so, up to the final one."""
    opened = []

    def ask(*outcomes):
        answers = GivenAnswers(outcomes)
        host = SimpleNamespace(no_bls="", call=lambda request, decoupled: answers)
        calls = Calls(lambda: host, NativeGpuOutputs())
        opened.append(calls)
        made = MadeCall()
        calls.call(made)
        responses = []
        while not responses or not responses[-1][0]:
            responses.append(made.responses.get(timeout=WAIT_S))
        return responses

    yield ask
    for calls in opened:
        calls.close()


HUGE = 1 << 70


def test_one_that_cannot_be_handed_over(ask):
    """It is an error, and those after it come."""
    first, failed, last = ask(response(1), response(HUGE), None)
    assert first == (False, {"number": 1}, None)
    final, parameters, (code, message) = failed
    assert (final, parameters, code) == (False, {}, Code.INTERNAL)
    assert message == "a response of the model that was called cannot be handed over: too large"
    assert last == (True, {}, None)


def test_the_last_one(ask):
    """The last one that cannot is the last one as an error."""
    ((final, _, failure),) = ask(InferenceResponse._from_wire([_Unreadable()], ""))
    assert final
    assert failure == (
        Code.INTERNAL,
        "a response of the model that was called cannot be handed over: no such memory",
    )


def test_no_more_can_be_had(ask):
    """Responses end with an error when the server is gone."""
    first, (final, _, failure) = ask(response(1), TritonModelException("the server is gone"), None)
    assert first == (False, {"number": 1}, None)
    assert (final, failure) == (True, (Code.INTERNAL, "the server is gone"))


class _Unreadable:
    """An output whose memory is not there."""

    def name(self):
        """See Tensor."""
        raise OSError("no such memory")
