# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls to other models, over a link that notes its messages: the test is the host."""

import asyncio
import gc
import threading
from collections import deque

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pyruntime.runtime.regions import create_region
from pyruntime.stub.calls import DROPS_WAITING_MAX, Calls
from pyruntime.stub.pb_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    PreferredMemory,
    Tensor,
    TritonModelException,
)
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils.addresses import address
from pyruntime.utils.arena import LARGE_BYTES
from pyruntime.utils.errors import Code, LocalError
from pyruntime.utils.messages import INLINE_BYTES_MAX, NO_SLOT, OK, Answer, Call, CancelCall, Consumed, ReleaseHold
from pyruntime.utils.request_codec import IN_MAIN_MEMORY, PLACES
from tests.patience import PATIENCE_S

SMALL = np.arange(4, dtype=np.uint8)
MEDIUM = np.arange(INLINE_BYTES_MAX + 1, dtype=np.uint16).astype(np.uint8)
LARGE = np.arange(LARGE_BYTES, dtype=np.uint32).astype(np.uint8)


class Link:
    """Notes the messages. A wait calls `on_wait` until it is over."""

    def __init__(self):
        self.sent = []
        self.posted = []
        self.closed = False
        self.attended = 0
        self.refusal = None
        self.on_wait = None

    def send(self, message):
        if self.refusal is not None:
            raise self.refusal
        self.sent += [*self.posted, message]
        self.posted.clear()

    def post(self, message):
        self.posted.append(message)

    def wait(self, done):
        while not done():
            if self.on_wait is None:
                return False
            self.on_wait()
        return True

    def attend(self):
        self.attended += 1

    def said(self):
        """The messages that were sent since the last call of this method."""
        sent, self.sent = self.sent, []
        return sent


class Bench:
    def __init__(self, regions):
        self.link = Link()
        self.responses = create_region("responses of a test")
        self.writer = ResponseWriter(self.responses, 1 << 20, "m", {"OUT"})
        self.calls = Calls(self.link, regions, self.writer)
        self.regions = regions

    def start(self, *arrays, decoupled=False, waiting=0, **options):
        """Call a model with these inputs, and return the call."""
        inputs = [Tensor(f"IN{number}", array) for number, array in enumerate(arrays)]
        request = InferenceRequest(model_name="other", inputs=inputs, **options)
        return self.calls.start(request, decoupled, waiting)

    def answer(self, number, response=None, final=True):
        self.calls.answered(Answer(number, response, final))

    @property
    def live(self):
        """How many slots are in use."""
        return self.writer._arena.live


@pytest.fixture
def bench(regions):
    made = Bench(regions)
    yield made
    made.responses.close()


def inline(contents=SMALL):
    """A response that comes along with its answer."""
    return [OK, "", NO_SLOT, [["OUT", "UINT8", list(contents.shape), contents.tobytes(), contents.nbytes, 0, 0]], ""]


@pytest.fixture
def held(granting, other_region):
    """A function that makes a response which lies in another model's region, under the number of a hold."""
    granting(other_region)

    def make(hold, contents=LARGE, offset=4096):
        other_region.view[offset : offset + contents.nbytes] = contents.tobytes()
        at = address(other_region.number, offset)
        return [OK, "", hold, [["OUT", "UINT8", list(contents.shape), at, contents.nbytes, 0, 0]], ""]

    return make


class TestStart:
    def test_small_inputs_go_along(self, bench):
        """A call with little to say says it in the message, and takes no memory."""
        kept = bench.start(SMALL, np.zeros((0, 3), np.float32))
        (call,) = bench.link.said()
        assert (call.call, call.model, call.version, call.decoupled, call.waiting) == (1, "other", -1, False, 0)
        assert call.request == [
            "", 0, 0, 0, None, "",
            [("IN0", "UINT8", [4], SMALL.tobytes(), 4, 0, 0), ("IN1", "FP32", [0, 3], b"", 0, 0, 0)], "", None,
        ]  # fmt: skip
        assert bench.live == 0
        assert kept.number == 1

    def test_larger_inputs_lie_in_a_slot(self, bench):
        """Inputs that are too large for a message are placed in a slot until the host reports that they are unread."""
        call = bench.start(MEDIUM)
        (message,) = bench.link.said()
        ((_, _, _, at, size, _, _),) = message.request[6]
        assert bench.responses.map[at : at + size] == MEDIUM.tobytes()
        assert bench.live == 1
        bench.calls.unread([1])
        assert bench.live == 0
        assert call is not None

    def test_inputs_that_are_shared_already(self, bench):
        """A large input of the model's own request is passed by its address, and kept until it is unread."""
        array = np.ndarray(LARGE.shape, np.uint8, bench.regions.requests.map, 4096)
        bench.start(array)
        ((_, _, _, at, _, _, _),) = bench.link.said()[0].request[6]
        assert at == address(bench.regions.requests.number, 4096)
        assert bench.live == 0
        kept = len(bench.calls._inputs)
        bench.calls.unread([1])
        assert (kept, len(bench.calls._inputs)) == (1, 0)

    def test_keeps_what_it_does_not_need_for_ever(self, bench):
        """A call that has ended leaves nothing behind, for inputs of any size."""
        calls = [bench.start(*arrays) for arrays in ([], [SMALL], [MEDIUM], [SMALL, MEDIUM])]
        for number in (1, 2, 3, 4):
            bench.answer(number, inline())
        bench.calls.unread([3, 4])
        for call in calls:
            call.next()
        assert bench.calls._inputs == bench.calls._open == bench.calls.waiting == {}
        assert bench.live == 0

    def test_of_everything(self, bench):
        """Everything that a request says goes along."""
        kept = bench.start(
            SMALL, request_id="7", correlation_id="s", flags=3, timeout=9, requested_output_names=["B", "A"],
            model_version=5, parameters={"a": 1}, decoupled=True, waiting=4,
        )  # fmt: skip
        (call,) = bench.link.said()
        assert (call.version, call.decoupled, call.waiting) == (5, True, 4)
        assert call.request[:6] == ["7", "s", 3, 9, ["A", "B"], '{"a": 1}']
        assert kept.number == call.call

    @pytest.mark.parametrize(
        ("memory", "places"),
        [
            (None, None),
            (PreferredMemory(TRITONSERVER_MEMORY_CPU, 3), IN_MAIN_MEMORY),
            (PreferredMemory(TRITONSERVER_MEMORY_GPU, 3), None),
        ],
    )
    def test_preferred_memory(self, bench, memory, places):
        """The server needs to know that outputs must be in main memory. To a GPU the process itself brings them."""
        kept = bench.start(SMALL, preferred_memory=memory)
        (call,) = bench.link.said()
        assert call.request[PLACES] == places
        assert kept.number == call.call

    def test_numbers(self, bench):
        """Each call has its own number."""
        calls = [bench.start(SMALL) for _ in range(3)]
        assert [message.call for message in bench.link.said()] == [1, 2, 3]
        assert len(calls) == 3

    def test_that_cannot_be_sent(self, bench):
        """A call that does not fit a frame never began, and has taken nothing."""
        bench.link.refusal = LocalError("too large")
        with pytest.raises(TritonModelException, match="the request cannot be sent: too large"):
            bench.start(MEDIUM, waiting=4)
        bench.link.refusal = None
        gc.collect()
        assert bench.live == 0
        assert bench.calls._open == bench.calls._inputs == bench.calls.waiting == {}
        assert bench.link.said() == []


class TestWaiting:
    def test_until_the_last_response(self, bench):
        """A batch waits for a call until that is over, whether or not anybody looks at its answers."""
        calls = [bench.start(SMALL, waiting=4), bench.start(SMALL), bench.start(SMALL, waiting=5, decoupled=True)]
        assert bench.calls.waiting == {1: 4, 3: 5}
        bench.answer(1, inline())
        bench.answer(2, inline())
        bench.answer(3, inline(), final=False)
        assert bench.calls.waiting == {3: 5}
        del calls
        gc.collect()
        assert bench.calls.waiting == {3: 5}
        bench.answer(3)
        assert bench.calls.waiting == {}


class TestNext:
    def test_before_the_caller_waits(self, bench):
        """An answer that is there already is taken at once."""
        call = bench.start(SMALL)
        bench.answer(1, inline())
        response = call.next()
        assert_array_equal(response.output_tensors()[0].as_numpy(), SMALL)
        assert call.next() is None

    def test_after_the_caller_waits(self, bench):
        """`next` waits if the response has not arrived."""
        call = bench.start(SMALL)
        bench.link.on_wait = lambda: bench.answer(1, inline())
        assert_array_equal(call.next().output_tensors()[0].as_numpy(), SMALL)

    def test_the_host_hangs_up(self, bench):
        """A call fails instead of waiting when the host has hung up."""
        call = bench.start(SMALL)
        with pytest.raises(TritonModelException, match="the server is gone"):
            call.next()
        bench.link.closed = True

    def test_error(self, bench):
        """A failure of the called model is the error of the response."""
        call = bench.start(SMALL)
        bench.answer(1, [Code.NOT_FOUND, "no", NO_SLOT, [], ""])
        response = call.next()
        assert response.has_error()
        assert (response.error().message(), response.error().code()) == ("no", Code.NOT_FOUND)

    def test_many(self, bench):
        """Responses come in order, also behind the last; the host learns of each but the last that it was taken."""
        call = bench.start(SMALL, decoupled=True)
        bench.link.said()
        for number in range(3):
            bench.answer(1, inline(np.array([number], np.uint8)), final=number == 2)
        values = []
        while (response := call.next()) is not None:
            values.append(response.output_tensors()[0].as_numpy().tolist())
        assert values == [[0], [1], [2]]
        assert bench.link.said() == [Consumed([[1, 1]])] * 2
        assert call.next() is None

    def test_an_end_that_comes_alone(self, bench):
        """It is a response without outputs, as in Triton."""
        call = bench.start(SMALL, decoupled=True)
        bench.answer(1, inline(), final=False)
        bench.answer(1)
        assert len(call.next().output_tensors()) == 1
        last = call.next()
        assert last.output_tensors() == []
        assert not last.has_error()
        assert call.next() is None

    def test_parameters(self, bench):
        """A response has its parameters."""
        call = bench.start(SMALL)
        bench.answer(1, [OK, "", NO_SLOT, [], '{"a":1}'])
        assert call.next().parameters() == '{"a":1}'

    def test_from_many_threads(self, bench):
        """Each thread has calls of its own."""
        outcomes = {}
        lock = threading.Lock()

        def execute(thread):
            for number in range(50):
                value = thread * 50 + number
                call = bench.start(np.array([value], np.uint8))
                with lock:
                    outcomes[call.number] = (value, call)

        threads = [threading.Thread(target=execute, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        asked = {message.call: message.request[6][0][3] for message in bench.link.said()}
        for number, contents in asked.items():
            bench.answer(number, inline(np.frombuffer(contents, np.uint8)))
        assert len(outcomes) == len(asked) == 200
        for value, call in outcomes.values():
            assert call.next().output_tensors()[0].as_numpy().tolist() == [value]


class TestHolds:
    def test_a_large_response_is_mapped(self, bench, held, other_region):
        """Its memory is the callee's until no array looks into it any more."""
        call = bench.start(SMALL)
        bench.link.said()
        bench.answer(1, held(9))
        response = call.next()
        array = response.output_tensors()[0].as_numpy()
        assert_array_equal(array, LARGE)
        other_region.view[4096] = 99
        assert array[0] == 99
        view = array[10:20]
        del response, array
        gc.collect()
        assert bench.link.said() == []
        del view
        gc.collect()
        assert bench.link.said() == [ReleaseHold([9])]

    def test_a_large_response_that_nobody_reads(self, bench, held):
        """A response that is dropped unread is given back, too."""
        call = bench.start(SMALL)
        bench.answer(1, held(9))
        bench.link.said()
        call.next()
        gc.collect()
        assert bench.link.said() == [ReleaseHold([9])]

    def test_a_smaller_response_is_copied(self, bench, held, other_region):
        """It is not worth a mapping: its hold goes back with the next call."""
        call = bench.start(SMALL)
        bench.answer(1, held(9, MEDIUM))
        bench.link.said()
        array = call.next().output_tensors()[0].as_numpy()
        other_region.view[4096] = 99
        assert_array_equal(array, MEDIUM)
        array[0] = 7
        assert bench.link.said() == []
        kept = bench.start(SMALL)
        assert [type(message) for message in bench.link.said()] == [ReleaseHold, Call]
        assert kept is not None

    def test_many_smaller_responses(self, bench, held):
        """The holds of many smaller responses are released together, also without a further call."""
        call = bench.start(SMALL, decoupled=True)
        holds = list(range(1, DROPS_WAITING_MAX + 1))
        for hold in holds:
            assert not any(type(message) is ReleaseHold for message in bench.link.said())
            bench.answer(1, held(hold, MEDIUM), final=False)
            call.next()
        assert ReleaseHold(holds) in bench.link.said()

    def test_of_both_sizes(self, bench, held, other_region):
        """One hold for all outputs: it is kept for the sake of the large one."""
        response = held(9)
        small = held(9, MEDIUM, 1 << 19)[3][0]
        response[3].append(["SMALL", *small[1:]])
        call = bench.start(SMALL)
        bench.answer(1, response)
        bench.link.said()
        large, small = call.next().output_tensors()
        assert_array_equal(small.as_numpy(), MEDIUM)
        small = None
        gc.collect()
        assert bench.link.said() == []
        large = None
        gc.collect()
        assert bench.link.said() == [ReleaseHold([9])]
        assert large is small

    def test_passed_on(self, bench, held, other_region):
        """The output of another model can be the input of a third model without a copy."""
        call = bench.start(SMALL)
        bench.answer(1, held(9))
        array = call.next().output_tensors()[0].as_numpy()
        bench.link.said()
        other = bench.start(array)
        (message,) = bench.link.said()
        assert message.request[6][0][3] == address(other_region.number, 4096)
        del array
        bench.answer(2, inline())
        other.next()
        gc.collect()
        assert bench.link.said() == []  # its callee may still read it
        bench.calls.unread([2])
        gc.collect()
        assert bench.link.said() == [ReleaseHold([9])]


class TestForgotten:
    def test_before_any_answer(self, bench, held):
        """Dropping a call without a response cancels it; its later responses are released."""
        bench.start(SMALL, decoupled=True)
        gc.collect()
        assert [type(message) for message in bench.link.said()] == [Call, CancelCall]
        bench.answer(1, held(5), final=False)
        bench.answer(1, held(6), final=True)
        assert bench.link.said() == [ReleaseHold([5]), ReleaseHold([6])]
        assert bench.calls._open == {}

    def test_in_the_middle(self, bench, held):
        """Dropping a call whose responses were taken in part cancels it and releases the others that have arrived."""
        call = bench.start(SMALL, decoupled=True)
        for hold in (5, 6, 7):
            bench.answer(1, held(hold), final=False)
        taken = call.next()
        bench.link.said()
        del call
        gc.collect()
        assert bench.link.said() == [ReleaseHold([6]), ReleaseHold([7]), CancelCall(1)]
        del taken
        gc.collect()
        assert bench.link.said() == [ReleaseHold([5])]

    def test_while_another_answer_arrives(self, bench, held, monkeypatch):
        """An answer that another thread brings while the call is being forgotten is given back like any other."""
        call = bench.start(SMALL, decoupled=True)
        bench.answer(1, held(5), final=False)
        bench.link.said()
        real = bench.calls.drop

        def drop(hold, at_once):
            if hold == 5:  # called by the destructor, and there are still references to the call
                bench.answer(1, held(6), final=True)
            real(hold, at_once)

        monkeypatch.setattr(bench.calls, "drop", drop)
        del call
        gc.collect()
        assert sorted(hold for message in bench.link.said() for hold in message.holds) == [5, 6]

    def test_after_the_last_answer(self, bench, held):
        """When all has arrived there is nothing to cancel."""
        call = bench.start(SMALL, decoupled=True)
        bench.answer(1, held(5), final=True)
        bench.link.said()
        del call
        gc.collect()
        assert bench.link.said() == [ReleaseHold([5])]

    def test_after_it_was_taken(self, bench):
        """Dropping a call whose responses were all taken has no effect."""
        call = bench.start(SMALL)
        bench.answer(1, inline())
        call.next()
        bench.link.said()
        del call
        gc.collect()
        assert bench.link.said() == []

    def test_the_host_is_gone(self, bench):
        """A hold that is dropped after the host has hung up is not reported."""
        call = bench.start(SMALL)
        bench.link.said()
        bench.link.closed = True
        del call
        gc.collect()
        assert bench.link.said() == []

    def test_by_a_destructor_in_the_middle_of_another(self, bench, held):
        """A destructor may run at any moment, also while holds are being given back: each is, once."""
        call = bench.start(SMALL, decoupled=True)
        responses = []
        for hold in (5, 6, 7):
            bench.answer(1, held(hold), final=False)
            responses.append(call.next())
        bench.link.said()
        real = bench.link.send

        def send(message):
            if responses:
                responses.pop()  # its hold is dropped within the sending of another's
            real(message)

        bench.link.send = send
        responses.pop()
        gc.collect()
        said = bench.link.said()
        assert sorted(hold for message in said for hold in message.holds) == [5, 6, 7]
        assert all(type(message) is ReleaseHold for message in said)
        assert call is not None

    def test_by_a_destructor_in_the_middle_of_a_flush(self, bench):
        """Even between a look at what waits and its taking."""

        class Drops(deque):
            """A deque whose last item another thread takes at the wrong moment."""

            def __bool__(self):
                return True

        bench.calls._drops = Drops([1, 2])
        bench.calls.flush()
        assert bench.link.said() == [ReleaseHold([1, 2])]
        bench.calls.flush()
        assert bench.link.said() == []


class TestCancel:
    def test_of_one_that_is_under_way(self, bench):
        """The host gets a cancellation; the call ends like any other."""
        call = bench.start(SMALL, decoupled=True)
        bench.link.said()
        call.cancel()
        assert bench.link.said() == [CancelCall(1)]
        bench.answer(1, [Code.CANCELLED, "", NO_SLOT, [], ""])
        assert call.next().error().code() == Code.CANCELLED
        call.cancel()
        assert bench.link.said() == []

    def test_of_one_that_has_arrived(self, bench):
        """Cancelling a call whose answer has arrived has no effect."""
        call = bench.start(SMALL)
        bench.answer(1, inline())
        bench.link.said()
        call.cancel()
        assert bench.link.said() == []
        assert call.next() is not None


class TestWhenNext:
    """Waiting in an event loop."""

    def run(self, bench, scenario, own_loop=True):
        async def run():
            bench.calls.loop = asyncio.get_running_loop() if own_loop else None
            await scenario()

        asyncio.run(run())

    def test_of_what_is_there(self, bench):
        """The callback is called at once."""

        async def scenario():
            call = bench.start(SMALL)
            bench.answer(1, inline())
            woken = []
            call.when_next(lambda: woken.append(1))
            assert woken == [1]

        self.run(bench, scenario)

    def test_of_what_is_to_come(self, bench):
        """The callback is called once, when the response arrives."""

        async def scenario():
            call = bench.start(SMALL, decoupled=True)
            woken = []
            call.when_next(lambda: woken.append(1))
            assert woken == []
            bench.answer(1, inline(), final=False)
            assert woken == [1]
            bench.answer(1, inline(), final=True)
            assert woken == [1]

        self.run(bench, scenario)

    def test_of_nothing_more(self, bench):
        """After the last there is nothing to wait for."""

        async def scenario():
            call = bench.start(SMALL)
            bench.answer(1, inline())
            call.next()
            woken = []
            call.when_next(lambda: woken.append(1))
            assert woken == [1]

        self.run(bench, scenario)

    def test_the_host_hangs_up(self, bench):
        """A hang-up wakes each waiting call once, and a call that waits afterwards is woken at once."""

        async def scenario():
            calls = [bench.start(SMALL) for _ in range(3)]
            woken = []
            for number, call in enumerate(calls[:2]):
                call.when_next(lambda number=number: woken.append(number))
            bench.link.closed = True
            bench.calls.lost()
            assert woken == [0, 1]
            bench.calls.lost()
            calls[2].when_next(lambda: woken.append(2))
            assert woken == [0, 1, 2]
            with pytest.raises(TritonModelException, match="the server is gone"):
                calls[0].next()

        self.run(bench, scenario)

    @pytest.mark.parametrize("own_loop", [True, False])
    def test_somebody_reads(self, bench, own_loop):
        """A loop that reads the link itself needs no attending thread; any other loop does."""

        async def scenario():
            bench.start(SMALL).when_next(lambda: None)

        self.run(bench, scenario, own_loop)
        assert bench.link.attended == (0 if own_loop else 1)
