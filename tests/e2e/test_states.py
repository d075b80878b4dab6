# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Implicit states of models in Python: tensors that the server keeps for each sequence."""

import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc

from .harness.models import parameters
from .harness.waiting import LIMIT_S

CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
PATIENT = "max_sequence_idle_microseconds: 100000000 "
SUM = 'input_name: "SUM" output_name: "NEW_SUM" data_type: TYPE_INT32 dims: [ 1 ] '
# What the sequence has sent, which grows.
SEEN = 'input_name: "SEEN" output_name: "NEW_SEEN" data_type: TYPE_INT32 dims: [ -1 ] '
# Adds up what each sequence sends, and keeps nothing itself. The response has the size of the batch.
ACCUMULATOR = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request, len(requests)) for request in requests]

    def one(self, request, together):
        value, total = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "SUM"))
        seen = pb_utils.get_input_tensor_by_name(request, "SEEN")
        outputs = []
        if value.flat[0] == -1:
            open(os.path.dirname(__file__) + "/running", "w").close()
            while not os.path.exists(os.path.dirname(__file__) + "/go"):
                time.sleep(0.01)
        if value.flat[0] == -2:
            os.kill(os.getpid(), signal.SIGKILL)
        if value.flat[0] == -3:
            total += 1000  # which must change nothing
            raise ValueError("minus three")
        if value.flat[0] == -4:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)])
        if value.flat[0] == -5:
            return pb_utils.InferenceResponse([pb_utils.Tensor("NEW_SUM", total.astype(np.float32))])
        total = total + value
        if seen is not None:
            seen = np.concatenate([seen.as_numpy(), value], axis=1)
            outputs.append(pb_utils.Tensor("NEW_SEEN", seen))
        outputs += [pb_utils.Tensor("OUT", total if seen is None else seen), pb_utils.Tensor("NEW_SUM", total)]
        return pb_utils.InferenceResponse(outputs, parameters={"together": together})
"""


def batching(*states, more=""):
    listed = ", ".join(f"{{ {state} }}" for state in states)
    return f"sequence_batching {{ {PATIENT} {more} state [ {listed} ] }}"


def ask(server, name, id, value, start=False, end=False, **options):
    array = np.full((1, 1), value, np.int32)
    result = server.infer(name, {"IN": array}, sequence_id=id, sequence_start=start, sequence_end=end, **options)
    return result.as_numpy("OUT")[0].tolist()


def refusal(server, name, id, value, **options):
    return server.refusal(name, {"IN": np.full((1, 1), value, np.int32)}, sequence_id=id, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model):
    """A server of the accumulator in both strategies, with several states, and with an initial state of a file."""
    repository = tmp_path_factory.mktemp("states")
    write_model(repository, "direct", ACCUMULATOR, CONFIG, batching(SUM))
    write_model(repository, "oldest", ACCUMULATOR, CONFIG, batching(SUM, more="oldest { max_candidate_sequences: 4 }"))
    write_model(repository, "two", ACCUMULATOR, CONFIG, batching(SUM, SEEN))
    initial = 'initial_state { name: "first" data_type: TYPE_INT32 dims: [ 1 ] data_file: "first" }'
    folder = write_model(repository, "file", ACCUMULATOR, CONFIG, batching(SUM + initial))
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "first").write_bytes(np.array([40], np.int32).tobytes())
    declared = CONFIG.replace("output [", 'output [ { name: "NEW_SUM" data_type: TYPE_INT32 dims: [ 1 ] },')
    write_model(repository, "declared", ACCUMULATOR, declared, batching(SUM))
    with serving(repository) as served:
        yield served


@pytest.fixture(params=["direct", "oldest"])
def name(request):
    return request.param


class TestState:
    def test_accumulates(self, server, name):
        """A request has what the one before it of its sequence returned; each sequence begins with zeros."""
        assert ask(server, name, 1, 5, start=True) == [5]
        assert ask(server, name, 2, 100, start=True) == [100]
        assert ask(server, name, 1, 6) == [11]
        assert ask(server, name, 2, 1, end=True) == [101]
        assert ask(server, name, 1, 7, end=True) == [18]
        assert ask(server, name, 1, 3, start=True, end=True) == [3]

    def test_begins_again(self, server, name):
        """START in the midst of a sequence begins with the initial state."""
        assert ask(server, name, 3, 5, start=True) == [5]
        assert ask(server, name, 3, 6, start=True) == [6]
        assert ask(server, name, 3, 7, end=True) == [13]

    def test_failure(self, server, name):
        """A request that fails leaves the state as it was, even if the model changed its input in place."""
        assert ask(server, name, 4, 5, start=True) == [5]
        assert refusal(server, name, 4, -3)[0] == 500
        assert ask(server, name, 4, 6, end=True) == [11]

    def test_not_returned(self, server, name):
        """A response without the state leaves it as it was."""
        assert ask(server, name, 5, 5, start=True) == [5]
        assert ask(server, name, 5, -4) == [5]
        assert ask(server, name, 5, 6, end=True) == [11]

    def test_wrong(self, server, name):
        """A state of another datatype is the model's fault: the request fails, and the state stays."""
        assert ask(server, name, 6, 5, start=True) == [5]
        assert refusal(server, name, 6, -5) == (
            500,
            f"model '{name}' returned a wrong state: unable to add state 'NEW_SUM'. Its datatype is INT32, got FP32",
        )
        assert ask(server, name, 6, 6, end=True) == [11]

    def test_not_for_clients(self, server):
        """A client does not get a state, and cannot ask for it; where it is an output as well it gets it."""
        result = server.infer("direct", {"IN": np.ones((1, 1), np.int32)}, sequence_id=7, sequence_start=True)
        assert [output["name"] for output in result.get_response()["outputs"]] == ["OUT"]
        assert refusal(server, "direct", 7, 1, outputs=["NEW_SUM"]) == (
            400,
            "unexpected inference output 'NEW_SUM' for model 'direct'",
        )
        first = {"sequence_id": 7, "sequence_start": True}
        result = server.infer("declared", {"IN": np.ones((1, 1), np.int32)}, outputs=["NEW_SUM"], **first)
        assert result.as_numpy("NEW_SUM").tolist() == [[1]]
        assert ask(server, "declared", 7, 1, end=True) == [2]

    def test_several(self, server):
        """Several states, one of which has another shape each time."""
        first = [ask(server, "two", 8, value, start=value == 1) for value in range(1, 6)]
        assert first == [[0, *range(1, value + 1)] for value in range(1, 6)]
        assert ask(server, "two", 8, 6, end=True) == [0, 1, 2, 3, 4, 5, 6]

    def test_file(self, server):
        """An initial state of a file, for each sequence."""
        for id in (9, 10):
            assert ask(server, "file", id, 1, start=True) == [41]
            assert ask(server, "file", id, 1, end=True) == [42]

    def test_stream(self, server, name):
        """A client of a stream that does not wait for answers: two sequences, in turns."""
        answers = queue.Queue()
        with closing(server.grpc()) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for index in range(50):
                for id, value in ((11, index), (12, 2 * index)):
                    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
                    tensor.set_data_from_numpy(np.full((1, 1), value, np.int32))
                    place = {"sequence_start": index == 0, "sequence_end": index == 49, "request_id": str(id)}
                    client.async_stream_infer(name, [tensor], sequence_id=id, **place)
            sums = {"11": [], "12": []}
            for _ in range(100):
                result, error = answers.get(timeout=LIMIT_S)
                assert error is None
                sums[result.get_response().id].append(int(result.as_numpy("OUT")[0, 0]))
            client.stop_stream()
        assert sums["11"] == list(np.cumsum(range(50)))
        assert sums["12"] == list(2 * np.cumsum(range(50)))


class TestTogether:
    @pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
    def test_one_batch(self, strategy, deploy, model, wait_until):
        """The requests of two sequences are executed together, and each has the state of its own."""
        folder = model("m", ACCUMULATOR, CONFIG, batching(SUM, more=strategy))
        server = deploy()
        assert ask(server, "m", 1, 10, start=True) == [10]
        assert ask(server, "m", 2, 20, start=True) == [20]
        with ThreadPoolExecutor(3) as pool:
            held = pool.submit(ask, server, "m", 3, -1, start=True)
            wait_until((folder / "1" / "running").exists)
            waiting = []
            for id in (1, 2):
                array = np.full((1, 1), id, np.int32)
                waiting.append(pool.submit(server.infer, "m", {"IN": array}, sequence_id=id))
                wait_until(lambda: pending(server) == len(waiting))
            (folder / "1" / "go").touch()
            assert held.result() == [-1]
            results = [each.result() for each in waiting]
        assert [result.as_numpy("OUT").tolist() for result in results] == [[[11]], [[22]]]
        assert [result.get_response()["parameters"]["together"] for result in results] == [2, 2]

    def test_death(self, serve, model):
        """The state is lost with the stub; behind its restart a sequence begins with the initial state."""
        model("m", ACCUMULATOR, CONFIG, batching(SUM))
        server = serve()
        assert ask(server, "m", 1, 5, start=True) == [5]
        assert refusal(server, "m", 1, -2)[0] == 500
        assert refusal(server, "m", 1, 6)[0] == 400
        assert ask(server, "m", 1, 7, start=True) == [7]
        assert ask(server, "m", 1, 7) == [14]


def pending(server):
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    (line,) = [line for line in page.splitlines() if line.startswith("nv_inference_pending_request_count{")]
    return int(float(line.split()[-1]))


LARGE = 1 << 20
# Keeps every state that it reads, and returns the next one.
LARGE_STATES = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            value = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
            state = pb_utils.get_input_tensor_by_name(request, "S").as_numpy()
            if value == 1:
                self.kept.append(state)
            if value == 0:
                self.kept.clear()
            found = [int(each.flat[-1]) for each in self.kept] + [int(state.flat[0])]
            state = state + 1
            responses.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", np.array([found], np.int32)), pb_utils.Tensor("S", state)]))
        return responses
"""


class TestLarge:
    STATE = f'input_name: "S" output_name: "S" data_type: TYPE_INT32 dims: [ {LARGE} ] '

    def test_kept(self, serve, model):
        """Large states are mapped; those that the model keeps do not change, and memory does not grow."""
        model("m", LARGE_STATES, CONFIG, batching(self.STATE))
        server = serve()
        assert ask(server, "m", 1, 1, start=True) == [0, 0]
        assert ask(server, "m", 1, 1) == [0, 1, 1]
        assert ask(server, "m", 1, 1) == [0, 1, 2, 2]
        for index in range(3, 10):
            assert ask(server, "m", 1, 2) == [0, 1, 2, index]
        assert ask(server, "m", 1, 0) == [10]
        before = server.shared_bytes()
        for index in range(11, 41):
            assert ask(server, "m", 1, 2) == [index]
        assert server.shared_bytes() <= before
        assert ask(server, "m", 1, 2, end=True) == [41]
        assert ask(server, "m", 1, 2, start=True, end=True) == [0]


# Adds its input to the state, in place.
IN_PLACE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
            state = pb_utils.get_input_tensor_by_name(request, "S").as_numpy()
            state += abs(value)
            outputs = [pb_utils.Tensor("OUT", state[:, -1:].copy())]
            if value == -1:
                raise ValueError("minus one")
            if value == -2:
                outputs.append(pb_utils.Tensor("S", state))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""


class TestInPlace:
    def test_changes(self, serve, model):
        """The memory of the input is the state: of each sequence its own, without a copy for any request."""
        model("m", IN_PLACE, CONFIG, batching(TestLarge.STATE + "use_same_buffer_for_input_output: true"))
        server = serve()
        assert ask(server, "m", 1, 5, start=True) == [5]
        assert ask(server, "m", 2, 100, start=True) == [100]
        before = server.shared_bytes()
        assert [ask(server, "m", 1, 1) for _ in range(20)] == [[value] for value in range(6, 26)]
        assert server.shared_bytes() <= before
        assert refusal(server, "m", 1, -1)[0] == 500
        assert ask(server, "m", 1, 1) == [27]
        status, message = refusal(server, "m", 1, -2)
        assert status == 500
        assert message.endswith(
            "The model changes it in place, by use_same_buffer_for_input_output, and does not return it"
        )
        assert ask(server, "m", 2, 1, end=True) == [101]
        assert ask(server, "m", 1, 7, start=True, end=True) == [7]
        assert ask(server, "m", 2, 8, start=True, end=True) == [8]

    def test_an_output_of_its_name(self, deploy, model):
        """Clients may have an output of the name of a state that is changed in place."""
        shared = self.state("S", "OUT") + "use_same_buffer_for_input_output: true"
        model("m", IN_PLACE, CONFIG, batching(shared))
        server = deploy()
        assert ask(server, "m", 1, 5, start=True) == [5]
        assert ask(server, "m", 1, 5) == [10]

    def test_what_grows(self, deploy, model):
        """With use_growable_memory a state has another size each time: the model returns it."""
        growing = SEEN + "use_same_buffer_for_input_output: true use_growable_memory: true"
        model("m", ACCUMULATOR, CONFIG, batching(SUM, growing))
        server = deploy()
        assert ask(server, "m", 1, 1, start=True) == [0, 1]
        assert ask(server, "m", 1, 2) == [0, 1, 2]
        assert ask(server, "m", 1, 3, end=True) == [0, 1, 2, 3]

    def state(self, taken, made):
        return f'input_name: "{taken}" output_name: "{made}" data_type: TYPE_INT32 dims: [ 1 ] '


# Sends the state, and a sum of it and the input, after execute has returned.
LATER = """
class TritonPythonModel:
    def execute(self, requests):
        threads = [threading.Thread(target=self.later, args=(request,)) for request in requests]
        for thread in threads:
            thread.start()

    def later(self, request):
        sender = request.get_response_sender()
        value, total = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "SUM"))
        for index in range(3):
            total = total + value
            sender.send(pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", total), pb_utils.Tensor("NEW_SUM", total)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


class TestDecoupled:
    def test_last_response(self, deploy, model):
        """The state is that of the latest response; the next request waits for the end of the one before it."""
        more = batching(SUM) + "model_transaction_policy { decoupled: true }"
        model("m", LATER, CONFIG, more)
        server = deploy()
        answers = queue.Queue()
        with closing(server.grpc()) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for index in range(3):
                tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.full((1, 1), 1, np.int32))
                client.async_stream_infer("m", [tensor], sequence_id=1, sequence_start=index == 0)
            sums = []
            for _ in range(9):
                result, error = answers.get(timeout=LIMIT_S)
                assert error is None
                sums.append(int(result.as_numpy("OUT")[0, 0]))
            client.stop_stream()
        assert sums == list(range(1, 10))


# Has the accumulator add its input three times, as a sequence of its own.
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor, flags = request.inputs()[0], [pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, 0, 0]
        flags[-1] = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
        for flag in flags:
            response = pb_utils.InferenceRequest(
                model_name="m", requested_output_names=["OUT"], inputs=[tensor], correlation_id=9, flags=flag).exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", response.output_tensors()[0].as_numpy())])
"""


class TestKindsOfModels:
    def test_called_by_a_model(self, deploy, model):
        """The states of a sequence that another model begins are kept like any other."""
        model("m", ACCUMULATOR, CONFIG, batching(SUM))
        model("caller", CALLER, CONFIG)
        server = deploy()
        for value in (5, 6):
            result = server.infer("caller", {"IN": np.full((1, 1), value, np.int32)})
            assert result.as_numpy("OUT").tolist() == [[3 * value]]

    def test_threads(self, deploy, model):
        """Instances that are threads of one process have the states of its sequences in common."""
        threads = parameters(INSTANCE_MODE="thread") + "instance_group { kind: KIND_CPU count: 3 }"
        model("m", ACCUMULATOR, CONFIG, batching(SUM) + threads)
        server = deploy()
        ids = range(1, 5)
        with ThreadPoolExecutor(4) as pool:
            for index in range(10):
                sums = list(pool.map(lambda id, index=index: ask(server, "m", id, id, start=index == 0), ids))
                assert sums == [[id * (index + 1)] for id in ids]
