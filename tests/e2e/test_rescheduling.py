# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that a model wants to have executed again, until it is done with them."""

import http.client
import json
import os
import queue
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc

from .harness.waiting import LIMIT_S

# Requests take turns: each of them has a slot until it is done.
ITERATIVE = "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 16 } }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
# Executes each request as often as its first number says, and writes down which it executed when.
AGAIN = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

def answer(array, **parameters):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], parameters=parameters)

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.times = {}
        self.seen = {}
        self.kept = []

    def tell(self, name, text="x"):
        with open(f"{self.folder}/{name}", "a") as file:
            file.write(text)

    def execute(self, requests):
        return [getattr(self, "do_" + json.loads(request.parameters()).get("act", "count"))(request)
                for request in requests]

    def is_done(self, request):
        # A new instance does not know what the one that died knew.
        id, array = request.request_id(), request.inputs()[0].as_numpy()
        self.times[id] = times = self.times.get(id, 0) + 1
        self.seen.setdefault(id, []).append([request.flags(), request.correlation_id()])
        self.tell("executed", id)
        if times >= array[0]:
            del self.times[id]
            return True
        request.set_release_flags(AGAIN)
        return False

    def do_count(self, request):
        if self.is_done(request):
            seen = self.seen.pop(request.request_id())
            return answer(request.inputs()[0].as_numpy(), seen=json.dumps(seen))

    def do_send(self, request):
        array, sender = request.inputs()[0].as_numpy(), request.get_response_sender()
        number = self.times.get(request.request_id(), 0)
        if self.is_done(request):
            sender.send(answer(np.array([number])), FINAL)
        else:
            sender.send(answer(np.array([number])))

    def do_end_and_reschedule(self, request):
        request.get_response_sender().send(answer(np.zeros(1)), FINAL)
        request.set_release_flags(AGAIN)

    def do_return(self, request):
        request.set_release_flags(AGAIN)
        return answer(np.zeros(1))

    def do_change(self, request):
        array = request.inputs()[0].as_numpy()
        array[1] += 1
        if self.is_done(request):
            return answer(array)

    def do_keep(self, request):
        array = request.inputs()[0].as_numpy()
        self.kept.append(array)
        if self.is_done(request):
            kept, self.kept = self.kept, []
            return answer(np.array([[each.min(), each.max()] for each in kept]).ravel())

    def do_until_cancelled(self, request):
        self.tell("begun")
        if request.is_cancelled():
            self.tell("cancelled")
            return answer(np.zeros(1))
        request.set_release_flags(AGAIN)

    def do_gate(self, request):
        self.tell("begun", request.request_id() or "x")
        if os.path.exists(self.folder + "/gate"):
            return answer(request.inputs()[0].as_numpy())
        request.set_release_flags(AGAIN)

    def do_die(self, request):
        path = self.folder + "/lives"
        self.tell("lives")
        if os.path.getsize(path) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.getsize(path) > 3:
            return answer(np.zeros(1))
        request.set_release_flags(AGAIN)

    def do_all(self, request):
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
        return answer(request.inputs()[0].as_numpy())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of models that may have requests executed again, and of one that may not."""
    repository = tmp_path_factory.mktemp("rescheduling")
    write_model(repository, "again", AGAIN, more=ITERATIVE)
    write_model(repository, "streams", DECOUPLED_AGAIN, more=f"{ITERATIVE} {DECOUPLED}")
    write_model(repository, "once", AGAIN)
    write_model(repository, "once_decoupled", DECOUPLED_AGAIN, more=DECOUPLED)
    with serving(repository) as server:
        server.repository = repository
        yield server


# The same, but execute returns None.
DECOUPLED_AGAIN = AGAIN.replace("        return [getattr", "        [getattr")


def ask(server, numbers, act="count", model="again", **options):
    """The output of a request that is executed again."""
    result = server.infer(model, {"IN": np.array(numbers)}, parameters={"act": act}, **options)
    return result.as_numpy("OUT").tolist()


def refusal(server, numbers, act, model="again"):
    """The error of one."""
    return server.refusal(model, {"IN": np.array(numbers)}, parameters={"act": act})


class TestAgain:
    @pytest.mark.parametrize("times", [1, 2, 3, 500])
    def test_until_done(self, server, times):
        """A request is executed as often as the model likes, and answered once, with its inputs as they were."""
        executed = server.repository / "again" / "executed"
        executed.unlink(missing_ok=True)
        assert ask(server, [times, 5, 6]) == [times, 5, 6]
        # Without an id nothing is written.
        assert ask(server, [times, 5, 6], request_id="a") == [times, 5, 6]
        assert executed.read_text() == "a" * times

    def test_start_of_the_sequence(self, server):
        """The first time it is the start of a sequence of its own, and then no more."""
        result = server.infer("again", {"IN": np.array([3])}, request_id="s")
        seen = json.loads(result.get_response()["parameters"]["seen"])
        assert [flags for flags, _ in seen] == [1, 0, 0]
        ids = {id for _, id in seen}
        assert len(ids) == 1
        assert ids != {0}
        result = server.infer("again", {"IN": np.array([1])}, request_id="t")
        (other,) = json.loads(result.get_response()["parameters"]["seen"])
        assert other[0] == 1
        assert other[1] not in {0, *ids}

    def test_in_turns(self, server, wait_until):
        """Requests that are executed again take turns with those that wait."""
        folder = server.repository / "again"
        with ThreadPoolExecutor() as clients:
            found = [clients.submit(ask, server, [1], "gate", request_id=name) for name in "ab"]
            wait_until(lambda: (folder / "begun").exists() and "ababab" in (folder / "begun").read_text())
            (folder / "gate").touch()
            assert [each.result() for each in found] == [[1], [1]]
        (folder / "gate").unlink()

    def test_many_at_once(self, server):
        """However many there are."""
        numbers = range(100)
        with ThreadPoolExecutor(8) as clients:
            found = [clients.submit(ask, server, [each % 7, each], request_id=f"m{each}") for each in numbers]
            assert [each.result() for each in found] == [[each % 7, each] for each in numbers]

    def test_changed_inputs(self, server):
        """The inputs are the same memory each time, with the model's changes."""
        assert ask(server, [5, 10], "change", request_id="c") == [5, 15]

    def test_kept_inputs(self, server):
        """A model may keep them beyond all that."""
        count = 1 << 14
        found = ask(server, [5] * count, "keep", request_id="k")
        assert found == [5, 5] * 5

    def test_large_inputs(self, server):
        """The memory of such requests comes back."""
        array = np.full(1 << 16, 3)
        for name in "abcde":
            server.infer("again", {"IN": array}, request_id=name)
        before = server.shared_bytes()
        for number in range(50):
            server.infer("again", {"IN": array}, request_id=f"l{number}")
        assert server.shared_bytes() <= before + array.nbytes

    def test_released_as_usual(self, server):
        """The other flag changes nothing."""
        assert ask(server, [7], "all") == [7]
        assert ask(server, [7], "all", model="once") == [7]


class TestStreams:
    def test_a_response_each_time(self, server):
        """A decoupled model may send a response each time it executes the request."""
        for count in (1, 2, 50):
            found = server.stream("streams", IN=[count], act="send", id=f"s{count}")
            assert [event.get("OUT", event) for event in found] == list(range(count))

    def test_streams_in_turns(self, server):
        """Several of them."""
        with ThreadPoolExecutor(4) as clients:
            found = [clients.submit(server.stream, "streams", IN=[50], act="send", id=f"p{each}") for each in range(8)]
            for each in found:
                assert [event.get("OUT", event) for event in each.result()] == list(range(50))


@pytest.fixture(scope="module")
def native(tmp_path_factory, install_backends, write_model, serving):
    """A server of models that send during Execute, later from a thread, and in a process of their own."""
    repository = tmp_path_factory.mktemp("iterate")
    tensor = 'name: "{}" data_type: TYPE_INT64 dims: 1'
    config = f'backend: "iterate" {ITERATIVE} {DECOUPLED}\n'
    config += f"input {{ {tensor.format('IN')} }} output {{ {tensor.format('OUT')} }}\n"
    parameter = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    write_model(repository, "during", None, config)
    write_model(repository, "later", None, config + parameter.format("SEND", "thread"))
    alone = parameter.format("EXECUTION_MODE", "process")
    write_model(repository, "apart", None, config + alone)
    with serving(repository, f"--backend-directory={install_backends('iterate')}") as server:
        yield server


class TestNative:
    """A backend in C++ that sends each response after it has released the request to be executed again."""

    @pytest.mark.parametrize("model", ["during", "later", "apart"])
    def test_requests_at_once(self, native, model):
        """Each client gets all responses to its request, in order."""
        counts = [1, 2, 50, 3, 4, 50]
        with ThreadPoolExecutor(len(counts)) as clients:
            found = list(clients.map(lambda count: native.stream(model, IN=[count]), counts))
        for count, events in zip(counts, found, strict=True):
            assert [event["OUT"] for event in events] == list(range(count))[::-1]

    @pytest.mark.parametrize("model", ["during", "later", "apart"])
    def test_two_requests_of_a_stream(self, native, model):
        """The same for requests at once over one stream of gRPC."""
        found, got = {"a": [], "b": []}, queue.Queue()
        with closing(native.grpc()) as client:
            client.start_stream(lambda result, error: got.put((result, error)))
            for name, count in (("a", 3), ("b", 5)):
                tensor = tritonclient.grpc.InferInput("IN", [1], "INT64")
                client.async_stream_infer(model, [tensor.set_data_from_numpy(np.array([count]))], request_id=name)
            for _ in range(8):
                result, error = got.get(timeout=LIMIT_S)
                assert error is None
                found[result.get_response().id].append(result.as_numpy("OUT").item())
        assert found == {"a": [2, 1, 0], "b": [4, 3, 2, 1, 0]}


NOT_ALLOWED = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag."
)


class TestErrors:
    def test_not_configured(self, server):
        """A model whose configuration does not allow it cannot have a request executed again."""
        assert refusal(server, [2], "count", "once") == (400, NOT_ALLOWED)
        found = server.stream("once_decoupled", IN=[2], act="count")
        assert [event["error"] for event in found] == [NOT_ALLOWED]
        assert ask(server, [1], model="once") == [1]

    def test_a_response_beside_it(self, server):
        """A request that is to be executed again has no response."""
        status, message = refusal(server, [1], "return")
        assert status == 500
        assert message == (
            "Failed to process the request(s) for model 'again_0', message: Expected a None object in the execute "
            "function return list for reschduled request, found type '<class "
            "'pyruntime.stub.pb_utils.response.InferenceResponse'>'."
        )

    def test_after_the_end(self, server):
        """A request that is over is not executed again."""
        assert ask(server, [1], "end_and_reschedule") == [0]
        assert ask(server, [1]) == [1]


class TestMeanwhile:
    def test_client_leaves(self, model, deploy, wait_until):
        """A cancelled request is not executed again."""
        folder = model("again", AGAIN, more=ITERATIVE)
        server = deploy()
        document = {
            "inputs": [{"name": "IN", "shape": [1], "datatype": "INT64", "data": [1]}],
            "parameters": {"act": "until_cancelled"},
        }
        for number in range(1, 6):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
            connection.request("POST", "/v2/models/again/infer", json.dumps(document))
            wait_until((folder / "begun").exists)
            connection.close()
            wait_until(lambda: times_are_over(server, folder))
            (folder / "begun").unlink()
            assert ask(server, [3, number], request_id="a") == [3, number]

    def test_others_go_on(self, model, deploy, wait_until):
        """While one is executed again and again, others are answered."""
        folder = model("again", AGAIN, more=ITERATIVE)
        server = deploy()
        with ThreadPoolExecutor() as clients:
            waiting = clients.submit(ask, server, [1, 2], "gate")
            wait_until((folder / "begun").exists)
            for number in range(10):
                assert ask(server, [3, number], request_id="a") == [3, number]
            assert not waiting.done()
            (folder / "gate").touch()
            assert waiting.result() == [1, 2]

    def test_shutdown(self, model, serve, wait_until):
        """A server that is stopped lets the request finish."""
        folder = model("again", AGAIN, more=ITERATIVE)
        server = serve()
        with ThreadPoolExecutor() as clients:
            waiting = clients.submit(ask, server, [1, 2], "gate")
            wait_until((folder / "begun").exists)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "in-flight requests to complete" in server.log)
            (folder / "gate").touch()
            assert waiting.result() == [1, 2]
        assert server.wait_exit() == 0

    def test_death(self, model, deploy):
        """A stub that dies fails the requests that it executes; the next stub begins anew."""
        model("again", AGAIN, more=ITERATIVE)
        server = deploy()
        status, message = refusal(server, [1], "die")
        assert status == 500
        assert message.startswith("Stub process 'again_0' is not healthy. It was lost while it ran this request")
        assert ask(server, [3, 1], request_id="a") == [3, 1]

    def test_death_while_it_queues(self, model, deploy, wait_until):
        """Requests that wait to be executed again when the stub dies are executed by the next stub."""
        folder = model("again", AGAIN, more=ITERATIVE)
        server = deploy()
        with ThreadPoolExecutor() as clients:
            waiting = [clients.submit(ask, server, [1, number], "gate") for number in range(6)]
            wait_until(lambda: (folder / "begun").exists() and (folder / "begun").stat().st_size > 20)
            old = server.stub("again_0")
            os.kill(old.pid, signal.SIGKILL)
            wait_until(lambda: server.stubs("again_0") not in ([], [old]))
            (folder / "gate").touch()
            lost = 0
            for number, each in enumerate(waiting):
                if each.exception() is None:
                    assert each.result() == [1, number]
                else:
                    assert "is not healthy" in str(each.exception())
                    lost += 1
        assert lost <= 1


def times_are_over(server, folder):
    """Whether no request is executed any more between two looks at the server."""
    before = (folder / "begun").stat().st_size
    for _ in range(3):
        server.request("GET", "/v2/health/live")
        ask(server, [1])
    return (folder / "begun").stat().st_size == before
