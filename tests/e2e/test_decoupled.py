# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decoupled models: any number of responses to a request, from any thread, at any time, as fast as they are taken."""

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import h2.errors
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc import stream_stall_detector
from pyruntime.utils.flow_control import BYTES_AHEAD_MAX, RESPONSES_AHEAD_MAX

from .harness.waiting import LIMIT_S

DECOUPLED = "model_transaction_policy { decoupled: true }"
# The request's parameter selects the action.
STREAMS = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def answer(*numbers, **parameters):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(numbers))], parameters=parameters)

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.go_on = threading.Event()
        self.kept = []

    def execute(self, requests):
        for request in requests:
            act = getattr(self, "do_" + json.loads(request.parameters())["act"])
            returned = act(request.get_response_sender(), request.inputs()[0].as_numpy())
            if returned is not None:
                return returned

    def tell(self, name):
        with open(f"{self.folder}/{name}", "a") as file:
            file.write("x")

    def do_nothing_but_end(self, sender, array):
        sender.send(flags=FINAL)

    def do_end_alone(self, sender, array):
        for number in array:
            sender.send(answer(number))
        sender.send(flags=FINAL)

    def do_end_on_the_last(self, sender, array):
        for number in array[:-1]:
            sender.send(answer(number))
        sender.send(answer(array[-1]), FINAL)

    def do_say_more(self, sender, array):
        for number in array:
            sender.send(answer(number, square=int(number) ** 2))
        sender.send(flags=FINAL)

    def do_later(self, sender, array):
        self.go_on.clear()
        threading.Thread(target=self.end_later, args=(sender, array)).start()

    def end_later(self, sender, array):
        self.tell("waits")
        self.go_on.wait()
        self.do_end_alone(sender, array)

    def do_release(self, sender, array):
        sender.send(flags=FINAL)
        self.go_on.set()

    def do_threads(self, sender, array):
        def send(number):
            for index in range(10):
                sender.send(answer(number, index))
            return number
        def send_all():
            threads = [threading.Thread(target=send, args=(number,)) for number in array]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            sender.send(flags=FINAL)
        threading.Thread(target=send_all).start()

    def do_error_in_the_middle(self, sender, array):
        sender.send(answer(1))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one")))
        sender.send(answer(3))
        sender.send(flags=FINAL)

    def do_end_with_an_error(self, sender, array):
        sender.send(answer(1))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one")), FINAL)

    def do_raise(self, sender, array):
        raise ValueError("exploded")

    def do_raise_in_the_middle(self, sender, array):
        sender.send(answer(1))
        raise ValueError("exploded")

    def do_raise_after_the_end(self, sender, array):
        sender.send(answer(1), FINAL)
        raise ValueError("exploded")

    def do_return_responses(self, sender, array):
        return [answer(1)]

    def do_forget(self, sender, array):
        pass

    def do_forget_in_the_middle(self, sender, array):
        sender.send(answer(1))

    def do_keep(self, sender, array):
        self.kept.append(sender)
        self.tell("kept")

    def do_drop(self, sender, array):
        self.kept.clear()
        sender.send(flags=FINAL)

    def do_misuse(self, sender, array):
        said = []
        def refused(*arguments):
            try:
                sender.send(*arguments)
            except pb_utils.TritonModelException as exc:
                said.append(str(exc))
        refused(answer(1), 2)
        refused(None, 0)
        refused()
        sender.send(answer(1), FINAL)
        refused(answer(2))
        refused(None, FINAL)
        with open(self.folder + "/refused", "w") as file:
            json.dump(said, file)

    def do_die(self, sender, array):
        sender.send(answer(1))
        sender.send(answer(2))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of models that are decoupled."""
    repository = tmp_path_factory.mktemp("decoupled")
    write_model(repository, "streams", STREAMS, more=DECOUPLED)
    write_model(repository, "batches", BATCHES, more=f"max_batch_size: 4 {DECOUPLED} {PATIENT}")
    write_model(repository, "coroutines", COROUTINES, more=DECOUPLED)
    with serving(repository) as server:
        server.repository = repository
        yield server


def outputs(events):
    """The outputs of a stream, with its errors in their places."""
    return [event["OUT"] if "OUT" in event else event["error"] for event in events]


def ask(server, act, numbers=(0,), model="streams"):
    """The outputs of a stream of a model whose action is a parameter."""
    return outputs(server.stream(model, IN=list(numbers), act=act))


class TestAnyNumber:
    @pytest.mark.parametrize("count", [1, 2, 1000])
    def test_of_responses(self, server, count):
        """However many responses there are, all come, in order; the end is said with the last one or after it."""
        numbers = list(range(count))
        assert ask(server, "end_alone", numbers) == numbers
        assert ask(server, "end_on_the_last", numbers) == numbers

    def test_none(self, server):
        """A request may end without any response."""
        assert ask(server, "nothing_but_end") == []

    def test_parameters(self, server):
        """Each response has its own parameters."""
        found = server.stream("streams", IN=[2, 3], act="say_more")
        assert [(event["OUT"], event["square"]) for event in found] == [(2, 4), (3, 9)]

    def test_what_senders_refuse(self, server):
        """Flags that there are not, nothing to send, and anything after the end: in Triton's words."""
        assert ask(server, "misuse") == [1]
        assert ask(server, "end_alone", [7]) == [7]  # so execute has returned, and noted them
        nothing = "Inference Response object must be provided when the response flags is set to zero."
        closed = "Unable to send response. Response sender has been closed."
        assert json.loads((server.repository / "streams" / "refused").read_text()) == [
            "Unable to send response. Unsupported flag provided.",
            nothing,
            nothing,
            closed,
            closed,
        ]


class TestThreads:
    def test_after_execute_has_returned(self, server, wait_until):
        """A thread may answer while execute runs for others."""
        (server.repository / "streams" / "waits").unlink(missing_ok=True)
        with ThreadPoolExecutor() as clients:
            late = clients.submit(ask, server, "later", [4, 5, 6])
            wait_until((server.repository / "streams" / "waits").exists)
            assert ask(server, "end_alone", [7]) == [7]  # so execute has returned from the first request
            assert not late.done()
            assert ask(server, "release") == []
            assert late.result() == [4, 5, 6]

    def test_ten_at_once(self, server):
        """Threads may share a sender: nothing is lost, and what each of them sends stays in order."""
        found = ask(server, "threads", range(10))
        assert sorted(found) == [[number, index] for number in range(10) for index in range(10)]
        for number in range(10):
            assert [index for sender, index in found if sender == number] == list(range(10))

    def test_requests_at_once(self, server):
        """Many streams of ten threads each."""
        with ThreadPoolExecutor(8) as clients:
            for found in clients.map(lambda _: ask(server, "threads", range(10)), range(16)):
                assert sorted(found) == [[number, index] for number in range(10) for index in range(10)]


class TestErrors:
    def test_in_the_middle(self, server):
        """A response that is an error ends nothing."""
        assert ask(server, "error_in_the_middle") == [1, "not this one", 3]
        assert ask(server, "end_with_an_error") == [1, "not this one"]

    @pytest.mark.parametrize(("act", "before"), [("raise", []), ("raise_in_the_middle", [1])])
    def test_execute_raises(self, server, act, before):
        """An exception of execute ends every request that is not over; the model goes on."""
        *found, error = ask(server, act)
        assert found == before
        raised = r"ValueError: exploded\n\nAt:\n  1/model\.py\(\d+\): do_\w+\n  1/model\.py\(\d+\): execute\n"
        failed = "Failed to process the request(s) for model 'streams_0', message: "
        assert re.fullmatch(re.escape(failed) + raised, error)
        assert ask(server, "end_alone", [7]) == [7]

    def test_execute_raises_after_the_end(self, server):
        """A request that is over stays as it was answered."""
        assert ask(server, "raise_after_the_end") == [1]
        assert ask(server, "end_alone", [7]) == [7]

    def test_execute_returns_something(self, server):
        """A decoupled model returns None."""
        assert ask(server, "return_responses") == [
            "Failed to process the request(s) for model 'streams_0', message: Python model 'streams_0' is using the "
            "decoupled mode and the execute function must return None."
        ]

    @pytest.mark.parametrize(("act", "before"), [("forget", []), ("forget_in_the_middle", [1])])
    def test_forgotten(self, server, act, before):
        """A request that no sender can end is ended, with an entry in the log."""
        warnings = server.log.count("the model let go of a request, and of its response senders")
        assert ask(server, act) == before
        assert server.log.count("the model let go of a request, and of its response senders") == warnings + 1

    def test_forgotten_later(self, server, wait_until):
        """A sender may be kept as long as the model likes; with the last reference to it goes the request."""
        (server.repository / "streams" / "kept").unlink(missing_ok=True)
        with ThreadPoolExecutor() as clients:
            kept = clients.submit(ask, server, "keep")
            wait_until((server.repository / "streams" / "kept").exists)
            assert ask(server, "end_alone", [7]) == [7]
            assert not kept.done()
            assert ask(server, "drop") == []
            assert kept.result() == []


class TestDeath:
    def test_in_the_middle(self, server, wait_until):
        """Responses that were sent arrive, and every open request of the stub ends with an error."""
        (server.repository / "streams" / "waits").unlink(missing_ok=True)
        with ThreadPoolExecutor() as clients:
            other = clients.submit(ask, server, "later")
            wait_until((server.repository / "streams" / "waits").exists)
            lost = "Stub process 'streams_0' is not healthy. It was lost while it ran this request: killed by SIGKILL"
            *found, error = ask(server, "die")
            assert found == [1, 2]
            assert error.startswith(lost)
            (error,) = other.result()
            assert error.startswith(lost)
        assert ask(server, "end_alone", [7]) == [7]


# Executes four requests at a time and answers them from the last to the first.
BATCHES = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        senders = [request.get_response_sender() for request in requests]
        for index in reversed(range(len(requests))):
            number = requests[index].inputs()[0].as_numpy()[0, 0]
            for _ in range(3):
                output = np.array([[number, len(requests)]])
                senders[index].send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output)]))
            senders[index].send(flags=FINAL)
"""
PATIENT = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 600000000 }"


def test_batches(server):
    """The requests of a batch are answered independently."""
    with ThreadPoolExecutor(4) as clients:
        for found in clients.map(lambda number: (number, ask(server, "", [number], "batches")), range(4)):
            number, rows = found
            assert rows == [[number, 4]] * 3


# All requests are executed at once, by one thread.
COROUTINES = """
import asyncio

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def answer(*numbers):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(numbers))])

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.waiting = 0
        self.all_there = None
        self.thread = threading.current_thread()

    async def execute(self, requests):
        for request in requests:
            act = getattr(self, "do_" + json.loads(request.parameters())["act"])
            sender = request.get_response_sender()
            array = request.inputs()[0].as_numpy()
            del request
            returned = await act(sender, array)
            if returned is not None:
                return returned

    async def do_answer(self, sender, array):
        for number in array:
            sender.send(answer(number))
            await asyncio.sleep(0)
        sender.send(flags=FINAL)

    async def do_meet(self, sender, array):
        assert threading.current_thread() is self.thread
        self.waiting += 1
        if self.all_there is None:
            self.all_there = asyncio.Event()
        if self.waiting == array[0]:
            self.all_there.set()
        await self.all_there.wait()
        self.waiting -= 1
        if not self.waiting:
            self.all_there = None
        sender.send(answer(array[0]), FINAL)

    async def do_raise(self, sender, array):
        raise ValueError("exploded")

    async def do_raise_later(self, sender, array):
        sender.send(answer(1))
        await asyncio.sleep(0)
        raise ValueError("exploded")

    async def do_return_responses(self, sender, array):
        await asyncio.sleep(0)
        return [answer(1)]

    async def do_forget(self, sender, array):
        await asyncio.sleep(0)

    async def do_leave_a_task(self, sender, array):
        async def later():
            await asyncio.sleep(0.001)
            await self.do_answer(sender, array)
        self.task = asyncio.create_task(later())

    async def do_cancel_itself(self, sender, array):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async def do_wait_for_ever(self, sender, array):
        with open(self.folder + "/waits", "w"):
            pass
        while not sender.is_cancelled():
            await asyncio.sleep(0.001)
        sender.send(flags=FINAL)
"""


class TestCoroutines:
    def test_answer(self, server):
        """execute may be a coroutine."""
        assert ask(server, "answer", range(200), "coroutines") == list(range(200))

    @pytest.mark.parametrize("count", [2, 10])
    def test_run_at_once(self, server, count):
        """Requests that wait for one another are all executed, in one thread."""
        with ThreadPoolExecutor(count) as clients:
            found = clients.map(lambda _: ask(server, "meet", [count], "coroutines"), range(count))
            assert list(found) == [[count]] * count

    @pytest.mark.parametrize(("act", "before"), [("raise", []), ("raise_later", [1])])
    def test_raise(self, server, act, before):
        """An exception of a coroutine ends its request, and no other."""
        with server.streaming("coroutines", IN=[2], act="answer") as other:
            *found, error = ask(server, act, model="coroutines")
            assert outputs(other) == [2]
        assert found == before
        assert error.startswith("Failed to process the request(s) for model 'coroutines_0', message: ValueError: explo")
        assert ask(server, "answer", [7], "coroutines") == [7]

    def test_return_something(self, server):
        """A decoupled model returns None, sooner or later."""
        assert ask(server, "return_responses", model="coroutines") == [
            "Failed to process the request(s) for model 'coroutines_0', message: Python model 'coroutines_0' is using "
            "the decoupled mode and the execute function must return None."
        ]

    def test_cancelled_by_the_model(self, server):
        """A coroutine that is cancelled fails its request."""
        (error,) = ask(server, "cancel_itself", model="coroutines")
        assert error.startswith("Failed to process the request(s) for model 'coroutines_0', message: CancelledError:")

    def test_forgotten(self, server):
        """A coroutine that ends without having ended its request has it ended."""
        assert ask(server, "forget", model="coroutines") == []

    def test_tasks(self, server):
        """A task that execute leaves behind goes on when execute is over, and while nothing else happens."""
        assert ask(server, "leave_a_task", [1, 2], "coroutines") == [1, 2]

    def test_death(self, server, wait_until):
        """A stub that dies takes what its coroutines were doing with it, and starts again."""
        (server.repository / "coroutines" / "waits").unlink(missing_ok=True)
        with ThreadPoolExecutor() as clients:
            waiting = clients.submit(ask, server, "wait_for_ever", model="coroutines")
            wait_until((server.repository / "coroutines" / "waits").exists)
            os.kill(server.stub("coroutines_0").pid, signal.SIGKILL)
            (error,) = waiting.result()
        assert error.startswith("Stub process 'coroutines_0' is not healthy. It was lost while it ran this request")
        assert ask(server, "answer", [7], "coroutines") == [7]


# Sends as many responses as the request says, of so many bytes, and writes down how far it is.
SOURCE = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def tell(self, name):
        with open(f"{self.folder}/{name}", "a") as file:
            file.write("x")

    def execute(self, requests):
        (request,) = requests
        count, size = request.inputs()[0].as_numpy()
        sender = request.get_response_sender()
        for number in range(count):
            if sender.is_cancelled():
                self.tell("cancelled")
                break
            self.tell("begun")
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size // 8, number))]))
            self.tell("sent")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Takes as many of them as the lines of its gate say, and all that are left at its end. Its output are their numbers.
SINK = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        iterator = pb_utils.InferenceRequest(model_name="source", inputs=[request.inputs()[0]]).exec(decoupled=True)
        found = []
        def take(response):
            for tensor in response.output_tensors():
                array = tensor.as_numpy()
                assert (array == array[:1]).all()
                found.extend(array[:1])
        with open(self.folder + "/gate") as gate:
            for line in gate:
                if line == "cancel\\n":
                    iterator.cancel()
                elif line == "drop\\n":
                    iterator = ()
                else:
                    for _ in range(int(line)):
                        take(next(iterator))
        for response in iterator:
            take(response)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(found, np.int64))])]
"""
MIB = 1 << 20


@pytest.fixture
def instances():
    """How many instances the model `source` has."""
    return 1


@pytest.fixture
def pipe(model, serve, tmp_path, wait_until, instances):
    """A server whose model `sink` takes the responses of `source`, with a gate and counters of these."""
    folder = model("source", SOURCE, more=f"{DECOUPLED}\ninstance_group {{ count: {instances} }}")
    os.mkfifo(model("sink", SINK) / "gate")
    server = serve()
    server.gate = tmp_path / "sink" / "gate"

    def count(name):
        path = folder / name
        return path.stat().st_size if path.exists() else 0

    server.count = count
    return server


class TestFlow:
    def test_waits_for_its_client(self, pipe, wait_until):
        """A sender is at most so many responses ahead, and goes on as they are taken."""
        count = RESPONSES_AHEAD_MAX + 136
        with ThreadPoolExecutor() as clients:
            taken = clients.submit(infer, pipe, count, 8)
            with pipe.gate.open("w") as gate:
                for taken_before in (0, 16, 32, 100):
                    wait_until(lambda taken=taken_before: pipe.count("begun") >= taken + RESPONSES_AHEAD_MAX + 1 - 16)
                    for _ in range(10):
                        pipe.is_ready()
                    assert pipe.count("sent") <= taken_before + RESPONSES_AHEAD_MAX
                    print({0: 16, 16: 16, 32: 68, 100: 0}[taken_before], file=gate, flush=True)
            assert taken.result() == list(range(count))

    def test_waits_for_its_memory(self, pipe, wait_until, require_memory):
        """The bytes that a sender may be ahead are limited. (Taken responses stay as long as the iterator.)"""
        require_memory(8 * BYTES_AHEAD_MAX)
        size, count = 8 * MIB, 40
        ahead = BYTES_AHEAD_MAX // size
        with ThreadPoolExecutor() as clients:
            taken = clients.submit(infer, pipe, count, size)
            with pipe.gate.open("w") as gate:
                for number in range(0, count - 2 * ahead, ahead):
                    wait_until(lambda number=number: pipe.count("begun") >= number + ahead)
                    assert pipe.count("sent") <= number + ahead
                    assert pipe.shared_bytes() < BYTES_AHEAD_MAX + (number + 2) * size
                    print(ahead, file=gate, flush=True)
            assert taken.result() == list(range(count))

    @pytest.mark.parametrize("instances", [2])
    def test_nobody_waits_behind_it(self, pipe, wait_until):
        """Another instance executes what was sent to the one whose sender waits."""
        count = 2 * RESPONSES_AHEAD_MAX
        with ThreadPoolExecutor() as clients:
            taken = clients.submit(infer, pipe, count, 8)
            with pipe.gate.open("w") as gate:
                wait_until(lambda: pipe.count("begun") == RESPONSES_AHEAD_MAX + 1)
                others = [clients.submit(pipe.stream, "source", IN=[2, 8]) for _ in range(6)]
                for other in others:
                    assert [event["OUT"] for event in other.result(LIMIT_S)] == [0, 1]
                print(count, file=gate, flush=True)
            assert taken.result() == list(range(count))

    @pytest.mark.parametrize("how", ["cancel", "drop"])
    @pytest.mark.parametrize("size", [8, 8 * MIB])
    def test_goes_on_when_nobody_takes(self, pipe, wait_until, how, size):
        """A sender that waits for a client that will never take goes on, and can see it."""
        ahead = min(RESPONSES_AHEAD_MAX, BYTES_AHEAD_MAX // max(1, size))
        with ThreadPoolExecutor() as clients:
            taken = clients.submit(infer, pipe, 2 * RESPONSES_AHEAD_MAX, size)
            with pipe.gate.open("w") as gate:
                wait_until(lambda: pipe.count("begun") == ahead + 1)
                print(how, file=gate, flush=True)
                wait_until(lambda: pipe.count("cancelled"))
            taken.result()


def infer(server, count, size):
    """The numbers that the sink has received from the source."""
    return server.infer("sink", {"IN": np.array([count, size])}).as_numpy("OUT").tolist()


# As SOURCE, with a coroutine for each request, all of them in one thread.
COROUTINES_OF_SOURCE = """
import asyncio

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    async def execute(self, requests):
        (request,) = requests
        count, size = request.inputs()[0].as_numpy()
        sender = request.get_response_sender()
        for number in range(count):
            with open(f"{self.folder}/begun", "a") as file:
                file.write("x")
            AWAIT
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size // 8, number))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize(
    ("room", "begun"),
    [("await asyncio.sleep(0)", 2 * RESPONSES_AHEAD_MAX), ("await sender.wait_for_room()", RESPONSES_AHEAD_MAX + 1)],
    ids=["kept back", "awaits room"],
)
def test_a_coroutine_whose_client_does_not_read_does_not_stop_the_others(
    model, serve, tmp_path, wait_until, room, begun
):
    folder = model("source", COROUTINES_OF_SOURCE.replace("AWAIT", room), more=DECOUPLED)
    os.mkfifo(model("sink", SINK) / "gate")
    server = serve()
    with ThreadPoolExecutor() as clients:
        unread = clients.submit(infer, server, 2 * RESPONSES_AHEAD_MAX, 8)
        with open(tmp_path / "sink" / "gate", "w") as gate:
            wait_until(lambda: (folder / "begun").exists() and (folder / "begun").stat().st_size == begun)
            assert [event["OUT"] for event in server.stream("source", IN=[3, 8])] == [0, 1, 2]
            assert not unread.done()
            gate.write("2\n")
        assert unread.result() == [*range(2 * RESPONSES_AHEAD_MAX)]


# One thread sends to all requests of a batch in turn.
IN_TURN = """
class TritonPythonModel:
    def execute(self, requests):
        senders = [request.get_response_sender() for request in requests]
        for number in range(int(requests[0].inputs()[0].as_numpy().flat[0])):
            for sender in senders:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full((1, 1), number))]))
        for sender in senders:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_one_thread_for_two_clients(model, serve, bare_client, with_limits):
    """A call whose client reads nothing stops the thread that answers it, and is reset; then the thread goes on."""
    more = "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 600000000 }"
    model("in_turn", IN_TURN, more=f"max_batch_size: 2 {DECOUPLED} {more}")
    server = serve(wrapper=with_limits(stream_stall_detector, STALLED_S_MAX=1.0))
    count = RESPONSES_AHEAD_MAX + 200
    request = service_pb2.ModelInferRequest(model_name="in_turn", raw_input_contents=[np.int64(count).tobytes()])
    request.inputs.add(name="IN", datatype="INT64", shape=[1, 1])
    with bare_client(server.grpc_port, window=0) as client:
        unread, read = (client.call(client.STREAM, request.SerializeToString()) for _ in range(2))
        client.h2.increment_flow_control_window(1 << 24, read)
        client.h2.increment_flow_control_window(1 << 24)
        client.flush()
        assert client.status(read) == "0"
        assert client.calls[unread].status == f"reset {h2.errors.ErrorCodes.CANCEL.value}"
        data, numbers = client.calls[read].data, []
        while data:
            size = 5 + int.from_bytes(data[1:5], "big")
            response = service_pb2.ModelStreamInferResponse.FromString(bytes(data[5:size])).infer_response
            numbers += [np.frombuffer(raw, np.int64)[0] for raw in response.raw_output_contents]
            data = data[size:]
    assert numbers == [*range(count)]


class TestShutdown:
    def test_while_a_stream_is_open(self, model, serve, wait_until, tmp_path):
        """A server that is stopped lets streams end."""
        folder = model("streams", STREAMS, more=DECOUPLED)
        server = serve()
        with ThreadPoolExecutor() as clients:
            late = clients.submit(ask, server, "later", [4, 5, 6])
            wait_until((folder / "waits").exists)
            with server.streaming("streams", IN=[0], act="release"):
                server.process.send_signal(signal.SIGTERM)
            assert late.result() == [4, 5, 6]
        assert server.wait_exit() == 0

    def test_with_a_stream_that_never_ends(self, model, serve, wait_until):
        """After its time limit it kills stubs that do not end."""
        model("streams", STREAMS, more=DECOUPLED)
        server = serve("--exit-timeout-secs=1")
        with ThreadPoolExecutor() as clients:
            kept = clients.submit(ask, server, "keep")
            wait_until((server.log_path.parent / "streams" / "kept").exists)
            server.process.send_signal(signal.SIGTERM)
            (error,) = kept.result()
        assert error.startswith("Stub process 'streams_0' is not healthy. It was lost while it ran this request")
        assert server.wait_exit() == 0
        assert "streams_0: did not finish within" in server.log
