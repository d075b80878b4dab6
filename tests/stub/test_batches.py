# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How batches are answered: by what execute returns, by senders, later, in part, or not at all.

A worker runs in a thread, and the test is the host.
"""

import socket
import sys
import textwrap

import numpy as np
import pytest

from pyruntime.runtime.regions import create_region
from pyruntime.utils.addresses import address
from pyruntime.utils.channel import FRAME_BYTES_MAX
from pyruntime.utils.errors import Code
from pyruntime.utils.messages import (
    NO_SLOT,
    OK,
    RESCHEDULED,
    SENDER,
    Answer,
    Call,
    Credit,
    Failed,
    Infer,
    Ready,
    ReleaseHold,
    Requeue,
    Respond,
    Result,
    Retired,
    Stop,
    Stopped,
)
from tests.patience import PATIENCE_S

PREFIX = "Failed to process the request(s) for model 'm_0', message: "
FORGOTTEN = "the model has let go of the request without a response"
DECOUPLED = {"model_transaction_policy": {"decoupled": True}}
EMPTY = [OK, "", NO_SLOT, [], ""]
# Code that the models of these tests share.
HELPERS = """
import asyncio
import threading

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def response(*values):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, np.float32))])

def value(request):
    return request.inputs()[0].as_numpy().tolist()

def other(*values):
    return pb_utils.InferenceRequest(
        model_name="other", requested_output_names=["OUT"],
        inputs=[pb_utils.Tensor("IN", np.array(values, np.float32))],
    )

def first(response):
    return response.output_tensors()[0].as_numpy().tolist()
"""


@pytest.fixture
def execute(host):
    """A function that loads a model with this body of its class."""

    def load(body, concurrency=1, ready=False, **config):
        source = f"{HELPERS}\nclass TritonPythonModel:\n{textwrap.indent(textwrap.dedent(body), '    ')}"
        assert host.load(source, concurrency, **config) == Ready(ready, False)
        return host

    return load


def answer(contents):
    """The other model's response, as it goes along."""
    return [OK, "", NO_SLOT, [["OUT", "FP32", [len(contents) // 4], contents, len(contents), 0, 0]], ""]


def contents(*values):
    """Values as they are in memory."""
    return np.array(values, np.float32).tobytes()


class TestSenderOfAPlainModel:
    def test_before_execute_returns(self, execute):
        """A response that is sent in execute is on its way before the batch is answered."""
        host = execute("""
            def execute(self, requests):
                for request in requests:
                    request.get_response_sender().send(response(*value(request)), FINAL)
                return [None for _ in requests]
        """)
        host.post(host.wire([1, 2]), host.wire([3], 64))
        first, second, result = host.receive(), host.receive(), host.receive()
        assert (first.serial, first.final, host.values(first.response)) == (1, True, [1, 2])
        assert (second.serial, second.final, host.values(second.response)) == (2, True, [3])
        assert (result.batch, result.responses, result.retained) == (1, [SENDER, SENDER], [])
        assert first.start_ns == second.start_ns == result.start_ns > 0

    def test_after_execute(self, execute):
        """A sender may answer long after execute, when the request itself is gone."""
        host = execute("""
            senders = []
            def execute(self, requests):
                for sender in self.senders:
                    sender.send(response(7))
                    sender.send(flags=FINAL)
                self.senders = [request.get_response_sender() for request in requests]
                return [None for _ in requests]
        """)
        result = host.infer(host.wire())
        assert (result.responses, result.retained) == ([SENDER], [])
        host.post(host.wire())
        sent, end, result = host.receive(), host.receive(), host.receive()
        assert (sent.serial, sent.final, host.values(sent.response)) == (1, False, [7])
        assert end[:3] == (1, None, True)
        assert (result.batch, result.responses) == (2, [SENDER])

    def test_from_another_thread(self, execute):
        """Any thread may send."""
        host = execute("""
            def execute(self, requests):
                threads = [threading.Thread(target=self.answer, args=(request,)) for request in requests]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return [None for _ in requests]
            def answer(self, request):
                request.get_response_sender().send(response(*value(request)), FINAL)
        """)
        host.post(host.wire([1]), host.wire([2], 64), host.wire([3], 128))
        sent = sorted((host.receive() for _ in range(3)), key=lambda message: message.serial)
        assert [host.values(message.response) for message in sent] == [[1], [2], [3]]
        assert host.receive().responses == [SENDER] * 3

    def test_only_of_some(self, execute):
        """Of one batch some may be answered by a sender, and some by what execute returns."""
        host = execute("""
            def execute(self, requests):
                requests[1].get_response_sender().send(response(7), FINAL)
                return [response(1), None, response(3)]
        """)
        host.post(host.wire(), host.wire(), host.wire())
        sent, result = host.receive(), host.receive()
        assert sent.serial == 2
        assert [type(each) for each in result.responses] == [list, type(None), list]

    def test_for_all_by_none(self, execute):
        """To return None is to leave it all to senders."""
        host = execute("""
            def execute(self, requests):
                for request in requests:
                    request.get_response_sender().send(response(), FINAL)
        """)
        host.post(host.wire(), host.wire())
        assert [host.receive().serial, host.receive().serial] == [1, 2]
        assert host.receive().responses == [SENDER, SENDER]

    def test_and_a_response_as_well(self, execute, caplog):
        """The sender was first; what execute returns for the same request is dropped, and its author reads so."""
        host = execute("""
            def execute(self, requests):
                requests[0].get_response_sender().send(response(7), FINAL)
                return [response(8)]
        """)
        host.post(host.wire())
        assert host.values(host.receive().response) == [7]
        assert host.receive().responses == [SENDER]
        assert "that its sender had answered; it is dropped" in caplog.text

    def test_that_did_not_say_that_it_was_the_last(self, execute):
        """The response that execute returns ends the request and closes its sender."""
        host = execute("""
            sender = None
            def execute(self, requests):
                if self.sender is not None:
                    try:
                        self.sender.send(flags=FINAL)
                    except pb_utils.TritonModelException as exc:
                        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc)))]
                self.sender = requests[0].get_response_sender()
                self.sender.send(response(7))
                return [response(8)]
        """)
        host.post(host.wire())
        sent, result = host.receive(), host.receive()
        assert (sent.serial, sent.final) == (1, False)
        assert host.values(result.responses[0]) == [8]
        ((_, message, *_),) = host.infer(host.wire()).responses
        assert message == "Unable to send response. Response sender has been closed."

    def test_forgotten(self, execute, caplog):
        """A request that cannot be answered any more fails, with an entry in the log: its client does not wait."""
        host = execute("""
            def execute(self, requests):
                return [None for _ in requests]
        """)
        host.post(host.wire(), host.wire())
        assert host.receive().responses == [SENDER, SENDER]
        for _ in range(2):
            sent = host.receive()
            assert (sent.final, sent.response[:2]) == (True, [Code.INTERNAL, FORGOTTEN])
        assert "let go of a request" in caplog.text

    def test_execute_that_returns_none_is_asked_for_its_return(self, execute, caplog):
        host = execute("""
            def execute(self, requests):
                responses = [response() for _ in requests]
        """)
        host.post(host.wire(), host.wire())
        assert host.receive().responses == [SENDER, SENDER]
        for _ in range(2):
            sent = host.receive()
            said = "execute returned None; is `return responses` missing?"
            assert (sent.final, sent.response[:2]) == (True, [Code.INTERNAL, said])
        assert [record.getMessage() for record in caplog.records] == [said, said]

    def test_execute_that_returns_none_and_loses_a_sender_is_not_asked_for_its_return(self, execute):
        host = execute("""
            def execute(self, requests):
                requests[0].get_response_sender()
        """)
        host.post(host.wire())
        assert host.receive().responses == [SENDER]
        assert host.receive().response[:2] == [Code.INTERNAL, FORGOTTEN]

    def test_forgotten_later(self, execute):
        """However much later that is."""
        host = execute("""
            senders = ()
            def execute(self, requests):
                self.senders = [requests[0].get_response_sender()] if len(self.senders) == 0 else ()
                return [None] if self.senders else [response()]
        """)
        assert host.infer(host.wire()).responses == [SENDER]
        host.post(host.wire())
        sent, result = host.receive(), host.receive()
        assert (sent.serial, sent.response[1]) == (1, FORGOTTEN)
        assert type(result) is Result

    def test_a_request_that_is_kept_is_not_forgotten(self, execute):
        """A request without a response is not forgotten while the model keeps it: it can still be answered."""
        host = execute("""
            kept = None
            def execute(self, requests):
                if self.kept is None:
                    self.kept = requests[0]
                    return [None]
                self.kept.get_response_sender().send(response(7), FINAL)
                self.kept = None
                return [response()]
        """)
        result = host.infer(host.wire())
        assert (result.responses, result.retained) == ([SENDER], [0])
        host.post(host.wire())
        sent, result, retired = host.receive(), host.receive(), host.receive()
        assert host.values(sent.response) == [7]
        assert (result.batch, retired) == (2, Retired([1]))

    @pytest.mark.parametrize(
        "ends", ["return [response()]", "raise ValueError('no')", "request.set_release_flags(2); return [None]"]
    )
    def test_of_a_request_that_is_over(self, execute, ends):
        """A sender of a request that was answered without one is closed."""
        host = execute(f"""
            kept = None
            def execute(self, requests):
                if self.kept is not None:
                    try:
                        self.kept.get_response_sender().send(response(), FINAL)
                    except pb_utils.TritonModelException as exc:
                        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc)))]
                request = self.kept = requests[0]
                {ends}
        """)
        host.infer(host.wire())
        ((_, message, *_),) = host.infer(host.wire()).responses
        assert message == "Unable to send response. Response sender has been closed."

    def test_result_that_fits_no_frame(self, execute):
        """A batch that cannot be answered for the text of one response fails as a whole, its senders' requests too."""
        host = execute(f"""
            sender = None
            def execute(self, requests):
                if self.sender is not None:
                    try:
                        self.sender.send(response(), FINAL)
                    except pb_utils.TritonModelException as exc:
                        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc)))]
                self.sender = requests[0].get_response_sender()
                return [None, pb_utils.InferenceResponse(parameters={{"a": "x" * {FRAME_BYTES_MAX}}})]
        """)
        assert type(host.infer(host.wire(), host.wire())) is Failed
        ((_, message, *_),) = host.infer(host.wire()).responses
        assert message == "Unable to send response. Response sender has been closed."

    def test_execute_fails_after_an_answer(self, execute):
        """A response that was sent stays valid; the other requests of the batch fail, and all senders are closed."""
        host = execute("""
            senders = ()
            def execute(self, requests):
                if self.senders:
                    said = []
                    for sender in self.senders:
                        try:
                            sender.send(response(), FINAL)
                        except pb_utils.TritonModelException as exc:
                            said.append(str(exc))
                    return [pb_utils.InferenceResponse(error=pb_utils.TritonError(json.dumps(said)))]
                self.senders = [request.get_response_sender() for request in requests]
                self.senders[0].send(response(), FINAL)
                raise ValueError("no")
        """)
        host.post(host.wire(), host.wire())
        sent, failed = host.receive(), host.receive()
        assert (sent.serial, type(failed)) == (1, Failed)
        ((_, said, *_),) = host.infer(host.wire()).responses
        assert said.count("Response sender has been closed.") == 2


class TestDecoupled:
    def test_many_responses(self, execute):
        """Responses come in order, before the batch is answered and after it."""
        host = execute("""
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                for number in range(3):
                    sender.send(response(number))
                sender.send(flags=FINAL)
        """, **DECOUPLED)  # fmt: skip
        host.post(host.wire())
        sent = [host.receive() for _ in range(3)]
        assert [host.values(message.response) for message in sent] == [[0], [1], [2]]
        assert not any(message.final for message in sent)
        assert host.receive()[:3] == (1, None, True)
        assert host.receive().responses == [SENDER]

    @pytest.mark.parametrize("value", ["[response()]", "[]", "[None]", "5"])
    def test_returns_something(self, execute, value):
        """Triton's words, exactly."""
        host = execute(f"""
            def execute(self, requests):
                return {value}
        """, **DECOUPLED)  # fmt: skip
        assert host.infer(host.wire()).message == (
            f"{PREFIX}Python model 'm_0' is using the decoupled mode and the execute function must return None."
        )

    def test_forgotten(self, execute):
        """A decoupled model need not respond: a request that it forgot is over."""
        host = execute("""
            def execute(self, requests):
                pass
        """, **DECOUPLED)  # fmt: skip
        host.post(host.wire())
        assert host.receive().responses == [SENDER]
        assert host.receive()[:3] == (1, None, True)

    def test_waits_for_its_client(self, execute):
        """After as many responses as a client is to have waiting, the sender waits until some were taken."""
        host = execute("""
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                for number in range(100):
                    sender.send(response(number))
                sender.send(flags=FINAL)
        """, **DECOUPLED)  # fmt: skip
        host.post(host.wire())
        for number in range(64):
            assert host.values(host.receive().response) == [number]
        host.send(Credit([[1, 16]]))
        for number in range(64, 80):
            assert host.values(host.receive().response) == [number]
        host.send(Credit([[1, 40]]))
        for number in range(80, 100):
            assert host.values(host.receive().response) == [number]
        assert host.receive()[:3] == (1, None, True)
        assert type(host.receive()) is Result

    def test_execute_fails_in_the_middle(self, execute):
        """The failure of the batch is the end of it."""
        host = execute("""
            def execute(self, requests):
                requests[0].get_response_sender().send(response(1))
                raise ValueError("no")
        """, **DECOUPLED)  # fmt: skip
        host.post(host.wire())
        assert type(host.receive()) is Respond
        assert host.receive().message.startswith(PREFIX + "ValueError: no")

    def test_is_cancelled(self, execute):
        """Request and sender see that the request is cancelled, while execute runs and afterwards."""
        host = execute("""
            request = None
            def execute(self, requests):
                if self.request is None:
                    self.request = requests[0]
                    return
                sender = self.request.get_response_sender()
                sender.send(response(self.request.is_cancelled(), sender.is_cancelled(), requests[0].is_cancelled()))
        """, **DECOUPLED)  # fmt: skip
        host.infer(host.wire())
        host.responses.set_flag(1, 1)
        host.post(host.wire())
        assert host.values(host.receive().response) == [1, 1, 0]


class TestCoroutines:
    def test_of_a_decoupled_model_run_on(self, execute):
        """The batches of a decoupled model are answered at once; their coroutines continue concurrently."""
        host = execute("""
            event = None
            async def execute(self, requests):
                (number,) = value(requests[0])
                sender = requests[0].get_response_sender()
                if self.event is None:
                    self.event = asyncio.Event()
                    await self.event.wait()
                self.event.set()
                sender.send(response(number), FINAL)
        """, **DECOUPLED)  # fmt: skip
        first = host.infer(host.wire([1]))
        assert (first.batch, first.responses, first.retained) == (1, [SENDER], [0])
        host.post(host.wire([2], 64))
        said = [host.receive() for _ in range(5)]
        assert [message.batch for message in said if type(message) is Result] == [2]
        values = {message.serial: host.values(message.response) for message in said if type(message) is Respond}
        assert values == {1: [1], 2: [2]}
        assert sorted(serial for message in said if type(message) is Retired for serial in message.requests) == [1, 2]

    def test_that_fails_afterwards(self, execute, caplog):
        """Requests that are not answered completely get the exception as error, even after the batch was answered."""
        host = execute("""
            async def execute(self, requests):
                requests[0].get_response_sender().send(response(1), FINAL)
                requests[1].get_response_sender().send(response(2))
                await asyncio.sleep(0)
                raise ValueError("no")
        """, **DECOUPLED)  # fmt: skip
        host.post(host.wire(), host.wire(), host.wire())
        assert host.receive().responses == [SENDER] * 3
        said = [host.receive() for _ in range(4)]
        assert [(message.serial, message.final) for message in said] == [(1, True), (2, False), (2, True), (3, True)]
        for message in said[2:]:
            assert message.response[1].startswith(PREFIX + "ValueError: no")
        assert "execute failed" in caplog.text
        assert host.receive() == Retired([1, 2, 3])

    def test_that_returns_something(self, execute):
        """The coroutine of a decoupled model must not return responses."""
        host = execute("""
            async def execute(self, requests):
                return [response()]
        """, **DECOUPLED)  # fmt: skip
        host.post(host.wire())
        assert host.receive().responses == [SENDER]
        assert "is using the decoupled mode and the execute function must return None" in host.receive().response[1]

    def test_that_the_model_starts(self, execute):
        """A task that a model has made goes on between batches, too."""
        host = execute("""
            async def execute(self, requests):
                self.task = asyncio.get_running_loop().create_task(self.answer(requests[0].get_response_sender()))
            async def answer(self, sender):
                for number in range(3):
                    await asyncio.sleep(0)
                    sender.send(response(number))
                sender.send(flags=FINAL)
        """, **DECOUPLED)  # fmt: skip
        host.post(host.wire())
        said = [host.receive() for _ in range(6)]
        assert [host.values(message.response) for message in said if type(message) is Respond and message.response] == [
            [0], [1], [2]
        ]  # fmt: skip

    def test_of_a_plain_model_are_waited_for(self, execute):
        """One batch at a time."""
        host = execute("""
            running = 0
            async def execute(self, requests):
                self.running += 1
                await asyncio.sleep(0)
                running, self.running = self.running, self.running - 1
                return [response(running)]
        """)
        host.post(host.wire())
        host.post(host.wire())
        assert [host.values(host.receive().responses[0]) for _ in range(2)] == [[1], [1]]


class TestReschedule:
    def test_is_told(self, execute):
        """A request that the model wants to see again is neither answered nor left to a sender."""
        host = execute("""
            def execute(self, requests):
                if value(requests[0]) == [2]:
                    return [response(7)]
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
        """)
        result = host.infer(host.wire([1]))
        assert (result.responses, result.retained) == ([RESCHEDULED], [])
        assert host.values(host.infer(host.wire([2])).responses[0]) == [7]

    def test_among_others(self, execute):
        """Others of the batch are answered."""
        host = execute("""
            def execute(self, requests):
                requests[1].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [response(1), None]
        """)
        result = host.infer(host.wire(), host.wire())
        assert host.values(result.responses[0]) == [1]
        assert result.responses[1] == RESCHEDULED

    def test_of_a_decoupled_model(self, execute):
        """A decoupled model may want it, too."""
        host = execute("""
            def execute(self, requests):
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        """, **DECOUPLED)  # fmt: skip
        assert host.infer(host.wire()).responses == [RESCHEDULED]

    def test_with_a_response(self, execute):
        """Triton's words, misspelt as there."""
        host = execute("""
            def execute(self, requests):
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [response()]
        """)
        assert host.infer(host.wire()).message.startswith(
            PREFIX + "Expected a None object in the execute function return list for reschduled request, found type"
        )

    def test_after_the_last_response(self, execute):
        """A request whose final response was sent is not rescheduled."""
        host = execute("""
            def execute(self, requests):
                requests[0].get_response_sender().send(response(), FINAL)
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
        """)
        host.post(host.wire())
        assert host.receive().final
        assert host.receive().responses == [SENDER]

    def test_closes_its_sender(self, execute):
        """Rescheduling a request closes its sender; the request comes with a new sender next time."""
        host = execute("""
            sender = None
            def execute(self, requests):
                if self.sender is not None:
                    try:
                        self.sender.send(response(), FINAL)
                    except pb_utils.TritonModelException as exc:
                        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc)))]
                self.sender = requests[0].get_response_sender()
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
        """)
        assert host.infer(host.wire()).responses == [RESCHEDULED]
        assert "has been closed" in host.infer(host.wire()).responses[0][1]


class TestCalls:
    """Of other models, from within execute."""

    EXEC = """
        def execute(self, requests):
            return [response(*first(other(*value(request)).exec())) for request in requests]
    """

    def test_one(self, execute):
        """A call within execute counts as waiting, and its answer reaches the model."""
        host = execute(self.EXEC)
        host.post(host.wire([1, 2]))
        call = host.receive()
        assert (call.call, call.model, call.version, call.decoupled, call.waiting) == (1, "other", -1, False, 1)
        assert call.request[4:] == [["OUT"], "", [["IN", "FP32", [2], contents(1, 2), 8, 0, 0]], "", None]
        host.send(Answer(1, answer(contents(7)), True))
        assert host.values(host.receive().responses[0]) == [7]

    def test_error(self, execute):
        """A failure of the called model is the error of the response."""
        host = execute("""
            def execute(self, requests):
                error = other().exec().error()
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError(error.message(), error.code()))]
        """)
        host.post(host.wire())
        host.receive()
        host.send(Answer(1, [Code.NOT_FOUND, "no", NO_SLOT, [], ""], True))
        assert host.receive().responses == [[Code.NOT_FOUND, "no", NO_SLOT, [], ""]]

    def test_many_at_a_time(self, execute):
        """Calls that a coroutine has begun go on beside each other, and are answered in any order."""
        host = execute("""
            async def execute(self, requests):
                calls = [other(number).async_exec() for number in range(3)]
                return [response(*[first(each)[0] for each in await asyncio.gather(*calls)])]
        """)
        host.post(host.wire())
        calls = [host.receive() for _ in range(3)]
        assert [call.waiting for call in calls] == [1, 1, 1]
        for call in reversed(calls):
            host.send(Answer(call.call, answer(contents(10 * call.call)), True))
        assert host.values(host.receive().responses[0]) == [10, 20, 30]

    def test_many_responses(self, execute):
        """The iterator gives them as they come."""
        host = execute("""
            def execute(self, requests):
                values = [first(each)[0] for each in other().exec(decoupled=True) if each.output_tensors()]
                return [response(*values)]
        """)
        host.post(host.wire())
        assert host.receive().decoupled
        for number in range(3):
            host.send(Answer(1, answer(contents(number)), False))
        host.send(Answer(1, None, True))
        said = [host.receive() for _ in range(4)]
        assert [message.calls for message in said[:-1]] == [[[1, 1]]] * 3
        assert host.values(said[-1].responses[0]) == [0, 1, 2]

    def test_of_a_coroutine_in_the_background(self, execute):
        """Calls of a decoupled model's coroutine do not count as waiting: other batches are executed meanwhile."""
        host = execute("""
            async def execute(self, requests):
                (number,) = value(requests[0])
                sender = requests[0].get_response_sender()
                if number == 1:
                    number = first(await other().async_exec())[0]
                sender.send(response(number), FINAL)
        """, **DECOUPLED)  # fmt: skip
        host.post(host.wire([1]))
        _, call = host.receive_all(Result, Call)
        assert call.waiting == 0
        host.post(host.wire([2], 64))
        result, sent, _ = host.receive_all(Result, Respond, Retired)
        assert (result.batch, sent.serial, host.values(sent.response)) == (2, 2, [2])
        host.send(Answer(1, answer(contents(7)), True))
        sent, retired = host.receive_all(Respond, Retired)
        assert (sent.serial, host.values(sent.response), retired.requests) == (1, [7], [1])

    def test_of_a_thread_of_the_model(self, execute):
        """A call from a thread of the model counts as waiting: execute most likely joins that thread."""
        host = execute("""
            def execute(self, requests):
                said = []
                thread = threading.Thread(target=lambda: said.append(first(other().exec())))
                thread.start()
                thread.join()
                return [response(*said[0])]
        """)
        host.post(host.wire())
        assert host.receive().waiting == 1
        host.send(Answer(1, answer(contents(7)), True))
        assert host.values(host.receive().responses[0]) == [7]

    @pytest.mark.parametrize("concurrency", [1, 2])
    @pytest.mark.parametrize("how", ["first(other().exec())", "first(await other().async_exec())"])
    def test_the_host_hangs_up(self, execute, how, concurrency):
        """A wait for an answer ends when the host hangs up, and so does the stub."""
        host = execute(f"""
            async def execute(self, requests):
                return [response(*{how})]
        """, concurrency)  # fmt: skip
        host.post(host.wire())
        assert type(host.receive()) is Call
        host.hang_up()
        host.join()

    def test_in_initialize(self, execute, host):
        """A model may call others while it loads."""
        source = f"{HELPERS}\n" + textwrap.dedent("""
            class TritonPythonModel:
                def initialize(self, args):
                    self.value = first(other().exec())
                def execute(self, requests):
                    return [response(*self.value)]
        """)
        call = host.load(source)
        assert (type(call), call.waiting) == (Call, 0)
        host.send(Answer(1, answer(contents(7)), True))
        assert host.receive() == Ready(False, False)
        assert host.values(host.infer(host.wire()).responses[0]) == [7]

    def test_in_finalize(self, execute, caplog):
        """A call in finalize is refused."""
        host = execute("""
            def execute(self, requests):
                return []
            def finalize(self):
                other().exec()
        """)
        assert host.ask(Stop()) == Stopped()
        assert "BLS is only supported during the 'execute' function." in caplog.text

    def test_a_large_response(self, execute, host):
        """It is mapped, and given back when it is not needed any more."""
        host = execute("""
            def execute(self, requests):
                array = other().exec().output_tensors()[0].as_numpy()
                return [response(array.sum(), array.size)]
        """)
        host.post(host.wire())
        host.receive()
        region = create_region("another model's responses")
        region.commit(0, 1 << 20)
        region.view[64 : 64 + (1 << 19)] = contents(1) * (1 << 17)
        socket.send_fds(host.grants, [region.number.to_bytes(8, "little")], [region.fileno()])
        tensor = ["OUT", "FP32", [1 << 17], address(region.number, 64), 1 << 19, 0, 0]
        host.send(Answer(1, [OK, "", 5, [tensor], ""], True))
        drop, result = host.receive_all(ReleaseHold, Result)
        assert drop == ReleaseHold([5])
        assert host.values(result.responses[0]) == [1 << 17, 1 << 17]
        region.close()


class TestPutBack:
    """Batches that have not begun are put back instead of waiting for a call to another model."""

    WAITS = """
        def execute(self, requests):
            if value(requests[0]) == [1]:
                other().exec()
            return [response(*value(request)) for request in requests]
    """

    def test_what_waits_already(self, execute):
        """Batches that were posted before the call began are put back in their order."""
        host = execute(self.WAITS)
        host.send(*[Infer(number, [host.wire([number], 64 * number)], []) for number in (1, 2, 3)])
        put_back, call = host.receive_all(Requeue, Call)
        assert put_back == Requeue([2, 3])
        assert call.waiting == 1
        host.send(Answer(1, EMPTY, True))
        assert host.receive().batch == 1

    def test_what_comes_meanwhile(self, execute):
        """Batches that are posted while a call waits are put back; those that come afterwards are executed."""
        host = execute(self.WAITS)
        host.send(Infer(1, [host.wire([1])], []))
        assert type(host.receive()) is Call
        host.send(Infer(2, [host.wire([2], 64)], []))
        assert host.receive() == Requeue([2])
        host.send(Answer(1, EMPTY, True))
        assert host.receive().batch == 1
        host.send(Infer(3, [host.wire([3], 64)], []))
        assert host.values(host.receive().responses[0]) == [3]

    def test_its_released_slots_count(self, execute):
        """The released slots that a batch brings are freed even if the batch is put back."""
        host = execute(self.WAITS)
        slot = host.infer(host.wire([2])).responses[0][2]
        host.send(Infer(2, [host.wire([1])], []))
        assert type(host.receive()) is Call
        host.send(Infer(3, [host.wire([2], 64)], [slot]))
        assert host.receive() == Requeue([3])
        host.send(Answer(1, EMPTY, True))
        assert host.receive().responses[0][2] == slot

    def test_not_for_a_call_that_nothing_waits_for(self, execute):
        """A call that outlives its batch keeps nothing from being executed."""
        host = execute("""
            iterator = None
            def execute(self, requests):
                if self.iterator is None:
                    self.iterator = other().exec(decoupled=True)
                return [response(*value(request)) for request in requests]
        """)
        host.post(host.wire([1]))
        assert type(host.receive()) is Call
        assert host.receive().batch == 1
        for number in (2, 3):
            result = host.infer(host.wire([number]))
            assert (result.batch, host.values(result.responses[0])) == (number, [number])

    def test_stop_behind_it(self, execute):
        """A stub that is stopped executes its batch before it ends."""
        host = execute(self.WAITS)
        host.send(Infer(1, [host.wire([1])], []), Infer(2, [host.wire([2], 64)], []), Stop())
        host.receive_all(Requeue, Call)
        host.send(Answer(1, EMPTY, True))
        assert host.receive().batch == 1
        assert host.receive() == Stopped()


class TestThreads:
    """Of a model that executes in several threads."""

    def test_at_a_time(self, execute):
        """As many batches run at a time as there are threads."""
        host = execute("""
            barrier = threading.Barrier(3)
            def execute(self, requests):
                self.barrier.wait(60)
                return [response(*value(requests[0]))]
        """, concurrency=3)  # fmt: skip
        for _ in range(2):
            batches = {host.post(host.wire([number], 64 * number)): number for number in (1, 2, 3)}
            results = [host.receive() for _ in range(3)]
            assert {result.batch: host.values(result.responses[0])[0] for result in results} == batches

    def test_wait_for_calls_of_their_own(self, execute):
        """A call of one thread keeps no other from working, and nothing is put back."""
        host = execute("""
            def execute(self, requests):
                if value(requests[0]) == [1]:
                    return [response(*first(other().exec()))]
                return [response(*value(requests[0]))]
        """, concurrency=2)  # fmt: skip
        host.post(host.wire([1]))
        assert host.receive().waiting == 1
        for number in (2, 3, 4):
            assert host.values(host.infer(host.wire([number], 64)).responses[0]) == [number]
        host.send(Answer(1, answer(contents(7)), True))
        assert host.values(host.receive().responses[0]) == [7]

    def test_coroutines(self, execute):
        """Each has an event loop of its own."""
        host = execute("""
            barrier = threading.Barrier(2)
            async def execute(self, requests):
                await asyncio.get_running_loop().run_in_executor(None, self.barrier.wait, 60)
                values = first(await other(*value(requests[0])).async_exec())
                return [response(*values)]
        """, concurrency=2)  # fmt: skip
        host.post(host.wire([1]))
        host.post(host.wire([2], 64))
        calls = [host.receive() for _ in range(2)]
        for call in calls:
            host.send(Answer(call.call, answer(call.request[6][0][3]), True))
        results = [host.receive() for _ in range(2)]
        assert {result.batch: host.values(result.responses[0]) for result in results} == {1: [1], 2: [2]}

    def test_coroutines_of_a_decoupled_model(self, execute):
        """They are run to their end, and answered."""
        host = execute("""
            async def execute(self, requests):
                await asyncio.sleep(0)
                if value(requests[0]) == [2]:
                    raise ValueError("no")
                for request in requests:
                    request.get_response_sender().send(response(*value(request)), FINAL)
        """, concurrency=2, **DECOUPLED)  # fmt: skip
        host.post(host.wire([1]), host.wire([3], 64))
        assert [host.values(host.receive().response) for _ in range(2)] == [[1], [3]]
        result = host.receive()
        assert (result.responses, result.retained) == ([SENDER, SENDER], [])
        assert host.infer(host.wire([2])).message.startswith(PREFIX + "ValueError: no")

    def test_stop(self, execute, host, tmp_path):
        """The model is finalized once, after all batches have been executed."""
        host = execute(f"""
            def execute(self, requests):
                return [response(*value(requests[0]))]
            def finalize(self):
                with open({str(tmp_path / "finalized")!r}, "a") as file:
                    file.write("finalized")
        """, concurrency=4)  # fmt: skip
        batches = [host.post(host.wire([number], 64 * number)) for number in range(1, 7)]
        host.send(Stop())
        assert sorted(host.receive().batch for _ in batches) == batches
        assert host.receive() == Stopped()
        assert (tmp_path / "finalized").read_text() == "finalized"
        host.join()

    def test_stop_again_and_again(self, hosts, tmp_path):
        """The stop works whichever thread receives it."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for number in range(20):
                host = hosts()
                host.folder = tmp_path / str(number)
                host.execute("return [pb_utils.InferenceResponse() for _ in requests]", concurrency=4)
                batches = [host.post(host.wire()) for _ in range(3)]
                host.send(Stop())
                assert sorted(host.receive().batch for _ in batches) == batches
                assert host.receive() == Stopped()
                host.close()
                assert host.died is None
        finally:
            sys.setswitchinterval(before)

    def test_the_host_is_gone(self, hosts):
        """Without a host all of them end."""
        host = hosts()
        host.execute("return []", concurrency=3)
        host.close()
        assert host.died is None


class TestRetained:
    def test_let_go_before_it_was_told(self, execute, monkeypatch):
        """An input that a thread releases right after execute is first reported as retained, and then as released."""
        host = execute("""
            def execute(self, requests):
                self.go_on = threading.Event()
                self.thread = threading.Thread(target=self.answer, args=(requests[0],))
                self.thread.start()
            def answer(self, request):
                assert self.go_on.wait(60)
                sender = request.get_response_sender()
                request = None
                sender.send(response(7), FINAL)
        """, **DECOUPLED)  # fmt: skip
        model, link = host.worker._batches.model, host.worker.link
        real = link.send

        def send(message):
            if type(message) is Result:  # the thread has done all that it does before the host reads this
                model.go_on.set()
                model.thread.join(PATIENCE_S)
                assert not model.thread.is_alive()
            real(message)

        monkeypatch.setattr(link, "send", send)
        host.post(host.wire())
        sent, result = host.receive(), host.receive()
        assert type(sent) is Respond
        assert (type(result), result.retained) == (Result, [0])
        assert host.receive() == Retired([1])
