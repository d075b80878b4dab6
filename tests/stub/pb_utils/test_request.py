# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceRequest`, as models know it: one that came, and one that a model makes to call another."""

import asyncio
import re
import threading

import numpy as np
import pytest

from pyruntime.stub import host as host_module
from pyruntime.stub.host import Answers, Host
from pyruntime.stub.pb_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceResponse,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
    get_input_tensor_by_name,
)
from pyruntime.stub.pb_utils.iterator import ResponseIterator
from pyruntime.stub.pb_utils.placement import InferenceTrace
from pyruntime.utils.request_codec import WireRequest

OUTPUTS = {"OUT1", "OUT0"}


@pytest.fixture
def region(regions):
    regions.requests.map[0:8] = bytes(range(8))
    return regions


def request(region, id="", correlation=0, flags=0, timeout_us=0, outputs=None, parameters="", tensors=(), trace=()):
    wire = WireRequest(id, correlation, flags, timeout_us, outputs, parameters, list(tensors), *trace)
    return InferenceRequest._from_wire(region, wire, OUTPUTS, 7)


class TestDefaults:
    def test_of_a_request_that_says_nothing(self, region):
        """A field that the client left out has Triton's default."""
        made = request(region)
        assert made.request_id() == ""
        assert made.correlation_id() == 0
        assert made.flags() == 0
        assert made.timeout() == 0
        assert made.parameters() == "{}"
        assert made.inputs() == []

    def test_all_outputs(self, region):
        """A request that names no output requests all outputs of the model."""
        assert request(region).requested_output_names() == OUTPUTS


class TestValues:
    def test_of_a_request_that_says_all(self, region):
        """The model reads each field as the client set it."""
        made = request(region, "id", "sequence", 3, 1000, ["OUT0"], '{"a":1}')
        assert made.request_id() == "id"
        assert made.correlation_id() == "sequence"
        assert made.flags() == 3
        assert made.timeout() == 1000
        assert made.requested_output_names() == {"OUT0"}
        assert made.parameters() == '{"a":1}'

    def test_number_of_a_sequence(self, region):
        """A sequence's id may be a number."""
        assert request(region, correlation=2**64 - 1).correlation_id() == 2**64 - 1

    def test_set_flags(self, region):
        """Flags may be replaced."""
        made = request(region, flags=1)
        made.set_flags(2)
        assert made.flags() == 2

    def test_no_outputs(self, region):
        """A client may want no output at all."""
        assert request(region, outputs=[]).requested_output_names() == set()

    def test_output_names_are_a_copy(self, region):
        """Changing the set of names affects neither the request nor other requests."""
        made = request(region)
        made.requested_output_names().clear()
        assert made.requested_output_names() == OUTPUTS
        assert request(region).requested_output_names() == OUTPUTS


class TestInputs:
    def test_in_the_order_they_came(self, region):
        """Inputs keep the order in which they were sent."""
        made = request(region, tensors=[["B", "UINT8", [2], 2, 2, 0, 0], ["A", "UINT8", [1, 2], 0, 2, 0, 0]])
        assert [tensor.name() for tensor in made.inputs()] == ["B", "A"]
        assert [tensor.as_numpy().tolist() for tensor in made.inputs()] == [[2, 3], [[0, 1]]]

    def test_are_the_same_each_time(self, region):
        """Asking twice gives the same tensors."""
        made = request(region, tensors=[["A", "UINT8", [2], 2, 2, 0, 0]])
        assert made.inputs()[0] is made.inputs()[0]

    def test_by_name(self, region):
        """`get_input_tensor_by_name` finds them; None for an input that was not sent."""
        made = request(region, tensors=[["A", "UINT8", [2], 2, 2, 0, 0]])
        assert get_input_tensor_by_name(made, "A").as_numpy().tolist() == [2, 3]
        assert get_input_tensor_by_name(made, "B") is None


def test_repr(region):
    """A request shows its id and its inputs, without contents."""
    made = request(region, "7", tensors=[["A", "UINT8", [2], 2, 2, 0, 0]])
    assert repr(made) == "<InferenceRequest '7' [<Tensor A UINT8 [2]>]>"


def test_has_no_more_attributes(region):
    """A misspelt attribute is an error, not a new one."""
    with pytest.raises(AttributeError):
        request(region).request = 1


class Call(Answers):
    """A call that is answered when the test says so."""

    def __init__(self):
        self.responses = []
        self.cancels = 0
        self.wake = None

    def next(self):
        return self.responses.pop(0) if self.responses else None

    def cancel(self):
        self.cancels += 1

    def when_next(self, wake):
        self.wake = wake
        if self.responses:
            wake()

    def answer(self, *responses):
        self.responses += responses
        if self.wake is not None:
            self.wake()


class Server(Host):
    """Notes the calls."""

    def __init__(self):
        self.calls = []
        self.answers = []
        self.cancelled = set()
        self.responded = []

    def call(self, request, decoupled):
        made = Call()
        made.responses += self.answers
        self.calls.append((request, decoupled, made))
        return made

    def respond(self, serial, response, wanted, final):
        self.responded.append((serial, response, wanted, final))

    def is_cancelled(self, serial):
        return serial in self.cancelled


@pytest.fixture
def server():
    made = Server()
    before = host_module.set_host(made)
    yield made
    host_module.set_host(before)


TENSOR = Tensor("IN", np.zeros(2, np.float32))


def call(**options):
    return InferenceRequest(model_name="other", inputs=[TENSOR], **options)


class TestTrace:
    def test_of_a_request(self, region):
        """A request knows the trace that it belongs to, for those that the model makes in turn."""
        context = '{"traceparent": "00-11-22-01"}'
        assert request(region, trace=[context]).trace().get_context() == context
        assert request(region).trace().get_context() is None


class TestCancelled:
    def test_flag(self, region, server):
        """A request sees whether anybody waits for it."""
        made = request(region)
        assert not made.is_cancelled()
        server.cancelled.add(7)
        assert made.is_cancelled()

    def test_of_one_that_the_model_made(self, server):
        """A request that the model made is never cancelled by the server: only the model waits for it."""
        server.cancelled.add(0)
        assert not call().is_cancelled()


class TestSenders:
    def test_are_one(self, region, server):
        """All senders of a request share its state."""
        made = request(region, outputs=["OUT0"])
        response = InferenceResponse()
        made.get_response_sender().send(response, 1)
        assert server.responded == [(7, response, {"OUT0"}, True)]
        with pytest.raises(TritonModelException, match="has been closed"):
            made.get_response_sender().send(response, 1)

    def test_are_one_whoever_asks(self, region, server):
        """Several threads that ask for a sender at the same moment get senders with the same state."""
        made = request(region)
        real = server.stream
        senders, threads, asked = [], [], threading.Event()

        def ask():
            senders.append(made.get_response_sender())
            asked.set()

        def stream(serial, wanted):
            server.stream = real
            threads.append(threading.Thread(target=ask))
            threads[0].start()
            asked.wait(0.2)  # it must not get ahead; if it does, it has by then
            return real(serial, wanted)

        server.stream = stream
        ask()
        threads[0].join(60)
        assert senders[0]._stream is senders[1]._stream

    def test_of_one_that_was_answered(self, region, server):
        """A sender of a request that was answered already is closed."""
        made = request(region)
        assert made._end()
        with pytest.raises(TritonModelException, match="has been closed"):
            made.get_response_sender().send(InferenceResponse(), 1)
        assert server.responded == []

    def test_of_one_that_the_model_made(self, server):
        """Triton's words, exactly."""
        message = "Unable to send response. Response sender has no reference to the decoupled state of the model."
        with pytest.raises(TritonModelException, match=f"^{re.escape(message)}$"):
            call().get_response_sender().send(InferenceResponse())


class TestRelease:
    def test_flags(self, region):
        """To be positional, and to be set for good."""
        made = request(region)
        assert made._release_flags == TRITONSERVER_REQUEST_RELEASE_ALL
        made.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        assert made._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
        with pytest.raises(TypeError):
            made.set_release_flags(flags=1)


class TestNew:
    def test_of_little(self):
        """A field that is left out has Triton's default."""
        made = InferenceRequest(model_name="other")
        assert made.request_id() == ""
        assert made.correlation_id() == 0
        assert made.inputs() == []
        assert made.requested_output_names() == set()
        assert (made.flags(), made.timeout(), made.parameters()) == (0, 0, "{}")
        assert made.trace().get_context() is None

    def test_of_everything(self):
        """Each field keeps its value, within the types that Triton returns."""
        made = InferenceRequest(
            "id", "sequence", [TENSOR], ["B", "A"], "other", 3, 1, 1000,
            PreferredMemory(TRITONSERVER_MEMORY_CPU), InferenceTrace("{}"), {"a": 1},
        )  # fmt: skip
        assert made.request_id() == "id"
        assert made.correlation_id() == "sequence"
        assert made.inputs() == [TENSOR]
        assert made.requested_output_names() == {"A", "B"}
        assert (made.flags(), made.timeout(), made.parameters()) == (1, 1000, '{"a": 1}')
        assert made.trace().get_context() == "{}"

    def test_inputs_are_a_copy(self):
        """A later change of the model's own list changes nothing."""
        tensors = [TENSOR]
        made = InferenceRequest(model_name="other", inputs=tensors)
        tensors.clear()
        assert made.inputs() == [TENSOR]

    def test_input_that_is_none(self):
        """Triton's words, exactly."""
        message = "Input tensor for request with id '7' and model name 'other' should not be empty."
        with pytest.raises(TritonModelException, match=f"^{re.escape(message)}$"):
            InferenceRequest(request_id="7", model_name="other", inputs=[None])

    @pytest.mark.parametrize("name", ["", b""])
    def test_output_without_a_name(self, name):
        """Triton's words, exactly."""
        message = "Requested output name for request with id '' and model name 'other' should not be empty."
        with pytest.raises(TritonModelException, match=f"^{re.escape(message)}$"):
            InferenceRequest(model_name="other", requested_output_names=[name])

    def test_none_is_no_name_of_an_output(self):
        with pytest.raises(TypeError, match="a requested output name must be a str"):
            InferenceRequest(model_name="other", requested_output_names=[None])

    @pytest.mark.parametrize("wrong", [None, 1.5, [], b"7"], ids=repr)
    def test_correlation_id(self, wrong):
        """Triton's words, exactly."""
        with pytest.raises(TritonModelException, match=r"^Correlation ID must be integer or string$"):
            InferenceRequest(model_name="other", correlation_id=wrong)

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ([1], "Expect <class 'dict'>, got <class 'list'>"),
            ({1: 1}, "Expect parameters keys to have type str, found type <class 'int'>"),
            ({"a": 1.5}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ],
    )
    def test_parameters(self, parameters, message):
        """Triton's words, exactly."""
        with pytest.raises(TritonModelException, match=f"^{re.escape(message)}$"):
            InferenceRequest(model_name="other", parameters=parameters)

    @pytest.mark.parametrize(
        "options",
        [
            {"model_name": ""}, {"model_name": None}, {"model_name": 5}, {"inputs": ["IN"]}, {"inputs": [np.zeros(1)]},
            {"requested_output_names": [5]}, {"model_version": "1"}, {"model_version": 1.0}, {"flags": None},
            {"timeout": "1"}, {"timeout": -1},
        ],
        ids=repr,
    )  # fmt: skip
    def test_something_else(self, options):
        """A value that would fail later, when the request is sent, fails in the constructor."""
        with pytest.raises(TypeError):
            InferenceRequest(**{"model_name": "other", **options})


class TestExec:
    def test_response(self, server):
        """The answer is the response."""
        response = InferenceResponse()
        server.answers = [response]
        made = call()
        assert made.exec() is response
        ((asked, decoupled, _),) = server.calls
        assert asked is made
        assert decoupled is False

    def test_failure(self, server):
        """A failure is the error of the response and is not raised."""
        server.answers = [InferenceResponse(error=TritonError("no", TritonError.NOT_FOUND))]
        assert call().exec().error().code() == TritonError.NOT_FOUND

    def test_again(self, server):
        """A request may be executed as often as one likes."""
        server.answers = [InferenceResponse()]
        made = call()
        made.exec()
        made.exec()
        assert len(server.calls) == 2

    def test_many(self, server):
        """For any number of responses there is an iterator."""
        server.answers = [InferenceResponse(), InferenceResponse()]
        assert list(call().exec(decoupled=True)) == server.answers
        assert server.calls[0][1] is True

    def test_of_a_request_that_came(self, region, server):
        """A request that the model received cannot be executed as it is."""
        with pytest.raises(TritonModelException, match="cannot be executed"):
            request(region).exec()
        assert server.calls == []

    def test_where_it_is_not_possible(self, server):
        """A BLS call outside of `execute` raises with the reason."""
        server.no_bls = "BLS is only supported during the 'execute' function."
        with pytest.raises(TritonModelException, match=f"^{re.escape(server.no_bls)}$"):
            call().exec()

    def test_outside_a_model(self):
        """A BLS call outside of a model raises."""
        before = host_module.set_host(None)
        with pytest.raises(TritonModelException, match="there is no server to ask"):
            call().exec()
        host_module.set_host(before)


class TestAsyncExec:
    def test_response(self, server):
        """It is awaited; others run meanwhile."""

        async def run():
            first, second = call().async_exec(), call().async_exec()
            await asyncio.sleep(0)
            assert not first.done()
            responses = [InferenceResponse(), InferenceResponse()]
            server.calls[1][2].answer(responses[1])
            assert await second is responses[1]
            assert not first.done()
            server.calls[0][2].answer(responses[0])
            assert await first is responses[0]

        asyncio.run(run())

    def test_begins_at_once(self, server):
        """Whether or not it is awaited."""

        async def run():
            future = call().async_exec()
            assert len(server.calls) == 1
            server.calls[0][2].answer(InferenceResponse())
            await future

        asyncio.run(run())

    def test_that_is_there_already(self, server):
        """An answer that comes at once is not missed."""

        async def run():
            server.answers = [InferenceResponse()]
            assert await call().async_exec() is server.answers[0]

        asyncio.run(run())

    def test_many(self, server):
        """For any number of responses there is an iterator, which is there with the first of them."""

        async def run():
            future = call().async_exec(decoupled=True)
            await asyncio.sleep(0)
            assert not future.done()
            server.calls[0][2].answer(InferenceResponse(), InferenceResponse())
            iterator = await future
            assert type(iterator) is ResponseIterator
            assert len(list(iterator)) == 2

        asyncio.run(run())

    @pytest.mark.parametrize("has_begun", [True, False])
    def test_cancelled(self, server, has_begun):
        """Cancelling the awaiting task cancels the call, also before the future was first awaited."""

        async def run():
            future = call().async_exec()
            if has_begun:
                await asyncio.sleep(0)
            future.cancel()
            with pytest.raises(asyncio.CancelledError):
                await future
            assert server.calls[0][2].cancels == 1

        asyncio.run(run())

    def test_answered_after_that(self, server):
        """An answer that comes after the cancellation is ignored."""

        async def run():
            future = call().async_exec()
            await asyncio.sleep(0)
            future.cancel()
            server.calls[0][2].answer(InferenceResponse())
            await asyncio.sleep(0)
            assert future.cancelled()

        asyncio.run(run())

    def test_answered_when_the_loop_is_gone(self, server):
        """An answer that comes after the end of the loop is ignored."""

        async def run():
            call().async_exec()
            await asyncio.sleep(0)

        asyncio.run(run())
        server.calls[0][2].answer(InferenceResponse())

    def test_without_a_loop(self, server):
        """There has to be an event loop that runs."""
        with pytest.raises(RuntimeError):
            call().async_exec()
        assert server.calls == []

    def test_where_it_is_not_possible(self, server):
        """Where BLS is not possible it is raised at once."""

        async def run():
            server.no_bls = "no"
            with pytest.raises(TritonModelException, match=r"^no$"):
                call().async_exec()

        asyncio.run(run())
