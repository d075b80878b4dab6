# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Responses that senders send, coroutines, cancellation, and what happens to a model that does not come to an end."""

import re
import threading
import time
from contextlib import contextmanager

import pytest

from pyruntime.testing import Code, InferenceError, Request, load_model
from pyruntime.utils.flow_control import RESPONSES_AHEAD_MAX
from tests.patience import PATIENCE_S

from .conftest import DECOUPLED, IN_OUT

ITERATIVE = IN_OUT + "sequence_batching { iterative_sequence: true }\n"
# Sends one response for each number, and then the flag alone.
COUNT = """
for request in requests:
    sender = request.get_response_sender()
    for number in array(request):
        sender.send(answer(number))
    sender.send(flags=FINAL)
"""
# For waits that will exceed it.
SHORT_S = 0.05


def values(responses):
    """The numbers of all responses."""
    return [result["OUT"].item() for result in responses]


@contextmanager
def impatient(model):
    """Wait for the model no longer than SHORT_S."""
    patience, model.timeout_s = model.timeout_s, SHORT_S
    yield
    model.timeout_s = patience


def failure_of(model, inputs):
    """The error that a request must end with."""
    with pytest.raises(InferenceError) as caught:
        model.infer(inputs)
    return caught.value


class TestDecoupled:
    def test_any_number(self, execute):
        """They come in order, and none is made up for the flag at the end."""
        model = execute(COUNT, DECOUPLED)
        responses = model.stream({"IN": [3, 2, 1]})
        results = list(responses)
        assert values(results) == [3, 2, 1]
        assert [result.is_final for result in results] == [False] * 3
        assert responses.is_complete
        assert list(model.stream({"IN": []})) == []
        assert repr(responses) == "<Responses to <Request '' ['IN']> complete>"

    def test_flag_on_the_last_response(self, execute):
        """A response that no other follows says so."""
        model = execute("requests[0].get_response_sender().send(answer(1), FINAL)", DECOUPLED)
        (result,) = model.stream({"IN": [1]})
        assert result.is_final

    def test_as_they_are_sent(self, execute):
        """The model goes on only as far as the test has followed, give or take a window."""
        body = """
        sender = requests[0].get_response_sender()
        self.sent = 0
        while not sender.is_cancelled():
            sender.send(answer(self.sent))
            self.sent += 1
        self.noticed = True
        sender.send(flags=FINAL)
        """
        model = execute(body, DECOUPLED)
        responses = model.stream({"IN": [1]})
        assert [next(responses)["OUT"].item() for _ in range(3)] == [0, 1, 2]
        assert model.instance.sent <= 3 + RESPONSES_AHEAD_MAX
        responses.close()
        assert list(responses) == []
        model.close()
        assert model.instance.noticed

    def test_an_error_among_others(self, execute):
        """An error is one response, which others may follow."""
        body = """
        sender = requests[0].get_response_sender()
        sender.send(answer(1))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)))
        sender.send(answer(2), FINAL)
        """
        first, second, third = execute(body, DECOUPLED).stream({"IN": [1]})
        assert values([first, third]) == [1, 2]
        assert (second.error.message, second.error.code) == ("no", Code.NOT_FOUND)

    def test_exception_in_between(self, execute):
        """An exception in execute ends the requests that are not answered completely."""
        body = COUNT.replace("sender.send(flags=FINAL)", "1 / array(request)[-1]")
        first, second = execute(body, DECOUPLED).stream({"IN": [5, 0]}), None
        assert values([next(first)]) == [5]
        assert values([next(first)]) == [0]
        (second,) = first
        assert "ZeroDivisionError" in second.error.message or "RuntimeWarning" in second.error.message

    def test_several_requests_at_once(self, execute):
        """Each has its own responses."""
        model = execute(COUNT, DECOUPLED)
        first, second = model.start([{"IN": [1, 2]}, {"IN": [3]}])
        assert values(second) == [3]
        assert values(first) == [1, 2]

    def test_refused(self, execute):
        """A request that the server refuses gets a single response, with the error."""
        (result,) = execute(COUNT, DECOUPLED).stream({})
        assert "got 0 inputs" in result.error.message

    def test_infer(self, execute):
        """There is no saying how many responses there are."""
        model = execute(COUNT, DECOUPLED)
        with pytest.raises(ValueError, match="model 'm' is decoupled: ask for the responses with stream or start"):
            model.infer({"IN": [1]})

    def test_wrong_return_value(self, execute):
        """The message is Triton's."""
        (result,) = execute("return []", DECOUPLED).stream({"IN": [1]})
        assert "is using the decoupled mode and the execute function must return None." in result.error.message

    def test_from_a_thread(self, execute):
        """A sender works long after execute has returned."""
        body = """
        def work(request, sender):
            for number in array(request):
                sender.send(answer(number))
            sender.send(flags=FINAL)
        for request in requests:
            threading.Thread(target=work, args=(request, request.get_response_sender())).start()
        """
        assert values(execute(body, DECOUPLED).stream({"IN": [1, 2]})) == [1, 2]

    def test_a_sender_that_is_forgotten(self, execute, caplog):
        """The request ends with its last sender, and the log says so."""
        assert list(execute("requests[0].get_response_sender()", DECOUPLED).stream({"IN": [1]})) == []
        assert "the model let go of a request" in caplog.text


class TestCoroutines:
    def test_waited_for(self, load):
        """`async def execute` of a model that is not decoupled is run to its end."""
        model = load(
            """
            class TritonPythonModel:
                async def execute(self, requests):
                    await asyncio.sleep(0)
                    return [answer(array(request)) for request in requests]
            """
        )
        assert model.infer({"IN": [1, 2]})["OUT"].tolist() == [1, 2]

    DECOUPLED = """
    class TritonPythonModel:
        def initialize(self, args):
            self.arrived = []
            self.gate = None
        async def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                number = int(array(request)[0])
                self.arrived.append(number)
                if self.gate is None:
                    self.gate = asyncio.Event()
                    await self.gate.wait()
                self.gate.set()
                if number < 0:
                    raise ValueError(number)
                sender.send(answer(number), FINAL)
    """

    def test_in_the_background(self, load):
        """Of a decoupled model several may run at a time; here the first waits for the second."""
        model = load(self.DECOUPLED, DECOUPLED)
        first = model.stream({"IN": [1]})
        second = model.stream({"IN": [2]})
        assert values(second) == [2]
        assert values(first) == [1]
        assert model.instance.arrived == [1, 2]

    def test_failing_in_the_background(self, load):
        """The error has the exception as its cause."""
        model = load(self.DECOUPLED, DECOUPLED)
        first = model.stream({"IN": [-1]})
        assert values(model.stream({"IN": [2]})) == [2]
        (result,) = first
        assert "message: ValueError: -1" in result.error.message
        assert type(result.error.__cause__) is ValueError

    def test_tasks_that_are_left(self, load):
        """Closing cancels them."""
        model = load(
            """
            class TritonPythonModel:
                async def execute(self, requests):
                    self.task = asyncio.get_running_loop().create_task(asyncio.sleep(1e6))
                    return [answer(0) for _ in requests]
            """
        )
        model.infer({"IN": [1]})
        model.close()
        assert model.instance.task.cancelled()


class TestSendersOfOtherModels:
    def test_one_response(self, execute):
        """A model that is not decoupled may answer by a sender, too."""
        body = """
        for request in requests:
            request.get_response_sender().send(answer(1), FINAL)
        return [None for _ in requests]
        """
        assert execute(body).infer({"IN": [1]})["OUT"].tolist() == [1]

    def test_rules(self, execute):
        """Triton's, in its words."""
        body = """
        sender = requests[0].get_response_sender()
        sender.send(answer(1))
        try:
            sender.send(answer(2))
        except pb_utils.TritonModelException as exc:
            self.problem = str(exc)
        sender.send(flags=FINAL)
        return [None]
        """
        model = execute(body)
        assert model.infer({"IN": [1]})["OUT"].tolist() == [1]
        assert model.instance.problem == (
            "Unable to send response. Non-decoupled model cannot send more than one response."
        )

    def test_none(self, execute):
        """A request without a response fails."""
        assert "without a response" in failure_of(execute("return [None]"), {"IN": [1]}).message

    def test_what_execute_does_last(self, execute):
        """A test sees what execute does after the response is sent."""
        body = """
        requests[0].get_response_sender().send(answer(1), FINAL)
        gc.collect()
        self.last = True
        return [None]
        """
        model = execute(body)
        model.infer({"IN": [1]})
        assert model.instance.last


class TestRescheduling:
    BODY = """
    request = requests[0]
    self.flags = [*getattr(self, "flags", []), request.flags()]
    if len(self.flags) < 3:
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return [None]
    return [answer(len(self.flags))]
    """

    def test_until_it_is_done(self, execute):
        """The request comes again, without the flag of a sequence's start."""
        model = execute(self.BODY, ITERATIVE)
        assert model.infer({"IN": [1]}, sequence_start=True, correlation_id=1)["OUT"].tolist() == [3]
        assert model.instance.flags == [1, 0, 0]

    def test_of_a_model_that_may_not(self, execute):
        """The message is Triton's."""
        failure = failure_of(execute(self.BODY), {"IN": [1]})
        assert "while the model is not configured to handle such a flag." in failure.message
        assert failure.code is Code.INVALID_ARG

    def test_for_ever(self, execute):
        """It ends when the test waits no longer."""
        body = "requests[0].set_release_flags(2)\nreturn [None]"
        model = execute(body, ITERATIVE)
        with impatient(model), pytest.raises(TimeoutError):
            model.infer({"IN": [1]})
        model.close()


class TestCancelling:
    BODY = "return [answer([each.is_cancelled(), each.get_response_sender().is_cancelled()]) for each in requests]"

    def test_before_it_is_sent(self, execute):
        """The model sees it from the start."""
        model = execute(self.BODY)
        request = Request({"IN": [1]})
        assert model.infer(request)["OUT"].tolist() == [0, 0]
        request.cancel()
        assert repr(request) == "<Request '' ['IN'] cancelled>"
        assert model.infer(request)["OUT"].tolist() == [1, 1]
        assert model.infer({"IN": [1]})["OUT"].tolist() == [0, 0]

    def test_while_it_runs(self, execute):
        """The model sees it when it looks."""
        body = """
        sender = requests[0].get_response_sender()
        sender.send(answer(0))
        while not requests[0].is_cancelled():
            time.sleep(0.001)
        sender.send(answer(1), FINAL)
        """
        responses = execute(body, DECOUPLED).stream({"IN": [1]})
        assert values([next(responses)]) == [0]
        responses.cancel()
        assert values(responses) == [1]


class TestTimeouts:
    def test_execute_that_hangs(self, write_model):
        """The request fails in time, with the place of the model; so does closing, which leaves the thread behind."""
        folder = write_model(
            """
            class TritonPythonModel:
                gate = threading.Event()
                def execute(self, requests):
                    self.wait()
                    return [answer(0)]
                def wait(self):
                    self.gate.wait()
            """
        )
        model = load_model(folder)
        with impatient(model), pytest.raises(TimeoutError) as caught:
            model.infer({"IN": [1]})
        assert re.fullmatch(
            "the model did not finish the request within 0.05 s: model 'm' has not returned from execute; it is at "
            r"1/model.py\(\d+\): wait",
            str(caught.value),
        )
        with pytest.raises(TimeoutError, match="model 'm' did not end a request that was cancelled"):
            model.close()
        model.instance.gate.set()

    def test_sender_that_is_kept(self, execute):
        """A request that is left to a sender and never finished fails with that reason."""
        model = execute("self.kept = [each.get_response_sender() for each in requests]", DECOUPLED)
        with (
            impatient(model),
            pytest.raises(TimeoutError, match="left it to a response sender, which has not sent the final response"),
        ):
            list(model.stream({"IN": [1]}))
        model.instance.kept.clear()
        model.close()

    def test_initialize(self, write_model):
        """Loading is bounded, too."""
        folder = write_model(
            """
            class TritonPythonModel:
                def execute(self, requests): pass
                def initialize(self, args):
                    while not pathlib.Path(__file__).with_name("go").exists():
                        time.sleep(0.01)
            """
        )
        with pytest.raises(TimeoutError, match=r"did not finish (import|initialize) within 0\.05 s"):
            load_model(folder, timeout_s=SHORT_S)
        (folder / "1/go").touch()

    def test_waiting_for_room(self, execute):
        """A model that waits for a test that has gone is let go."""
        model = execute(COUNT, DECOUPLED)
        responses = model.stream({"IN": list(range(RESPONSES_AHEAD_MAX * 3))})
        next(responses)
        model.close()
        assert list(responses) == []


def test_a_fault_of_ours(execute, monkeypatch):
    """A failure of the code around the model fails the request."""

    def fail(*_):
        raise RuntimeError("on purpose")

    model = execute("return [pb_utils.InferenceResponse(error=pb_utils.TritonError('no'))]")
    monkeypatch.setattr("pyruntime.stub.batches.Batches._answer", fail)
    assert "the request cannot be executed: RuntimeError('on purpose')" in failure_of(model, {"IN": [1]}).message


def test_from_several_threads(execute):
    """Requests may come from any thread; they are executed one after the other."""
    model = execute(
        """
        assert not getattr(self, "busy", False)
        self.busy = True
        time.sleep(0)
        self.busy = False
        return [answer(array(request)) for request in requests]
        """
    )
    results = {}

    def ask(number):
        results[number] = model.infer({"IN": [number]})["OUT"].item()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.join(deadline - time.monotonic())
    assert results == {number: number for number in range(8)}
