# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of sequences: in order, on one instance, and with control inputs."""

import json
import queue
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from .harness.models import parameters
from .harness.waiting import LIMIT_S

CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
# An instance of a model that does not batch has one slot.
ONE_SLOT = CONFIG.replace("max_batch_size: 4", "").replace("[ 1 ]", "[ -1, 1 ]")
# A hundred seconds: no test waits for the end of a sequence that it does not want to see ended.
PATIENT = "max_sequence_idle_microseconds: 100000000 "
CONTROLS = """
control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ] },
  { name: "END" control [ { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } ] },
  { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
]
"""
# Adds up what each sequence sends. A response has the parameters of the batch that its request was in.
ACCUMULATOR = """
class TritonPythonModel:
    def initialize(self, args):
        self.name, self.folder = args["model_instance_name"], args["model_repository"]
        self.sums = {}

    def execute(self, requests):
        seen = [self.seen(request) for request in requests]
        return [self.one(request, seen) for request in requests]

    def seen(self, request):
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        controls = {name: array.tolist() for name, array in tensors.items() if name != "IN"}
        if isinstance(controls.get("ID", [[0]])[0][0], bytes):
            controls["ID"] = [[controls["ID"][0][0].decode()]]
        return [request.correlation_id(), request.flags(), controls]

    def one(self, request, seen):
        id, flags = request.correlation_id(), request.flags()
        if not id:  # padding
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 1), np.int32))])
        value = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
        if value == -1:
            open(self.folder + "/running", "w").close()
            while not os.path.exists(self.folder + "/go"):
                time.sleep(0.01)
        if value == -2:
            os.kill(os.getpid(), signal.SIGKILL)
        if value == -4:
            raise ValueError("minus four")
        if value == -3:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("minus three"))
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sums[id] = 0
        self.sums[id] += value
        array = np.array([[self.sums[id]]], np.int32)
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            del self.sums[id]
        told = {"seen": json.dumps(seen), "instance": self.name}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], parameters=told)
"""
# Executes each request as often as it says, and answers with the sizes of the batches that it was in.
TOGETHER = """
class TritonPythonModel:
    def initialize(self, args):
        self.sizes = {}

    def execute(self, requests):
        return [self.one(request, len(requests)) for request in requests]

    def one(self, request, size):
        id, times = request.correlation_id(), int(request.inputs()[0].as_numpy().flat[0])
        self.sizes[id] = self.sizes.get(id, "") + str(size)
        if len(self.sizes[id]) < times:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[int(self.sizes.pop(id))]], np.int32))])
"""
START_MISSING = "must specify the START flag on the first request of the sequence"


def batching(more):
    return f"sequence_batching {{ {PATIENT} {more} }} "


def ids(parameters):
    return [id for id, _, _ in json.loads(parameters["seen"])]


def pending(server):
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    (line,) = [line for line in page.splitlines() if line.startswith("nv_inference_pending_request_count{")]
    return int(float(line.split()[-1]))


def send(server, name, id, value, start=False, end=False, rows=1, **options):
    """One request: the sum so far."""
    array = np.full((rows, 1), value, np.int32)
    result = server.infer(name, {"IN": array}, sequence_id=id, sequence_start=start, sequence_end=end, **options)
    return int(result.as_numpy("OUT")[0, 0])


def told(server, name, id, value, start=False, end=False):
    """One request: the parameters of its response."""
    array = np.full((1, 1), value, np.int32)
    result = server.infer(name, {"IN": array}, sequence_id=id, sequence_start=start, sequence_end=end)
    return result.get_response()["parameters"]


def refusal(server, name, id, value, **options):
    return server.refusal(
        name, {"IN": np.full((options.pop("rows", 1), 1), value, np.int32)}, sequence_id=id, **options
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model):
    """A server of the accumulator in both strategies, and of one that wants to know names of sequences."""
    repository = tmp_path_factory.mktemp("sequences")
    texts = CONTROLS.replace("TYPE_UINT64", "TYPE_STRING")
    for name, more in (
        ("direct", CONTROLS),
        ("oldest", f"oldest {{ max_candidate_sequences: 4 }} {CONTROLS}"),
        ("named", texts),
    ):
        write_model(repository, name, ACCUMULATOR, CONFIG, batching(more))
    with serving(repository) as served:
        yield served


@pytest.fixture(params=["direct", "oldest"])
def name(request):
    return request.param


class TestSequence:
    def test_accumulates(self, server, name):
        """A model may keep something from one request to the next; two sequences do not mix."""
        assert send(server, name, 1, 5, start=True) == 5
        assert send(server, name, 10, 100, start=True) == 100
        assert send(server, name, 1, 6) == 11
        assert send(server, name, 10, 1, end=True) == 101
        assert send(server, name, 1, 7, end=True) == 18
        assert refusal(server, name, 1, 8) == (
            400,
            f"inference request for sequence 1 to model '{name}' {START_MISSING}",
        )

    def test_controls(self, server, name):
        """A request has the inputs that say where in its sequence it is, one row of one element each."""

        def seen(*request, **flags):
            return json.loads(told(server, name, *request, **flags)["seen"])[-1]

        controls = {"START": [[1]], "READY": [[1.0]], "END": [[False]], "ID": [[1 << 40]]}
        assert seen(1 << 40, 1, start=True) == [1 << 40, 1, controls]
        assert seen(1 << 40, 1) == [1 << 40, 0, controls | {"START": [[0]]}]
        assert seen(1 << 40, 1, end=True) == [1 << 40, 2, controls | {"START": [[0]], "END": [[True]]}]

    def test_begins_again(self, server, name):
        """START in the midst of a sequence begins it again, which is logged."""
        assert send(server, name, 2, 5, start=True) == 5
        assert send(server, name, 2, 6, start=True) == 6
        assert send(server, name, 2, 7, end=True) == 13
        assert f"sequence 2 for model '{name}' has a conflict" in server.log

    def test_failure_of_a_request(self, server, name):
        """A request that fails is not the end of its sequence."""
        assert send(server, name, 3, 5, start=True) == 5
        assert refusal(server, name, 3, -3) == (500, "minus three")
        assert send(server, name, 3, 6, end=True) == 11

    def test_refusals(self, server, name):
        """A request that does not belong to a sequence is refused with Triton's messages."""
        prefix = f"inference request to model '{name}' must specify"
        assert refusal(server, name, 0, 1) == (400, f"{prefix} a non-zero or non-empty correlation ID")
        assert refusal(server, name, 4, 1, rows=2, sequence_start=True) == (
            400,
            f"{prefix} batch-size 1 due to requirements of sequence batcher",
        )
        assert refusal(server, name, 4, 1) == (
            400,
            f"inference request for sequence 4 to model '{name}' {START_MISSING}",
        )
        assert refusal(server, "named", "four", 1) == (
            400,
            f"inference request for sequence four to model 'named' {START_MISSING}",
        )

    def test_name(self, server):
        """A sequence may have a name instead of a number, where the model wants a name, and only there."""
        assert send(server, "named", "five", 5, start=True) == 5
        parameters = told(server, "named", "five", 6, end=True)
        assert json.loads(parameters["seen"])[-1][2]["ID"] == [["five"]]
        assert refusal(server, "direct", "five", 1, sequence_start=True) == (
            400,
            "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'BYTES', but model 'direct' "
            "expects 'UINT64'",
        )
        assert refusal(server, "named", 5, 1, sequence_start=True) == (
            400,
            "[request id: <id_unknown>] sequence batching control 'ID' data-type is 'UINT64', but model 'named' "
            "expects 'BYTES'",
        )


class TestBatches:
    def test_rows_are_slots(self, deploy, model):
        """In the direct strategy each sequence keeps its row; for a model that reads READY other rows are padded."""
        model("m", ACCUMULATOR, CONFIG, batching(CONTROLS))
        server = deploy()
        for id in (1, 2, 3):
            send(server, "m", id, id, start=True)
        rows = json.loads(told(server, "m", 2, 1)["seen"])
        assert [(id, flags) for id, flags, _ in rows] == [(0, 0), (2, 0)]
        assert [controls["READY"] for _, _, controls in rows] == [[[0.0]], [[1.0]]]
        assert [controls["ID"] for _, _, controls in rows] == [[[0]], [[2]]]
        statistics = json.loads(server.request("GET", "/v2/models/m/stats").body)["model_stats"][0]
        assert statistics["inference_count"] == statistics["inference_stats"]["success"]["count"] == 4
        assert statistics["inference_stats"]["fail"]["count"] == 0
        assert refusal(server, "m", 3, -4)[0] == 500
        failed = json.loads(server.request("GET", "/v2/models/m/stats").body)["model_stats"][0]["inference_stats"]
        assert failed["fail"]["count"] == 1
        assert [batch["batch_size"] for batch in statistics["batch_stats"]] == [1, 2, 3]

    @pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
    def test_one_request_each(self, strategy, deploy, model, wait_until):
        """Waiting requests of several sequences are executed together, but never two requests of one."""
        folder = model("m", ACCUMULATOR, CONFIG, batching(strategy))
        server = deploy()
        with ThreadPoolExecutor(8) as pool:
            held = pool.submit(told, server, "m", 1, -1, start=True)
            wait_until((folder / "running").exists)
            waiting = []
            for id, start in ((2, True), (3, True), (1, False), (2, False), (3, False)):
                waiting.append(pool.submit(told, server, "m", id, id, start=start))
                wait_until(lambda: pending(server) == len(waiting))
            (folder / "go").touch()
            assert ids(held.result()) == [1]
            batches = [ids(each.result()) for each in waiting]
        assert [sorted(batch) for batch in batches[:3]] == [[1, 2, 3]] * 3
        assert [sorted(batch) for batch in batches[3:]] == [[2, 3]] * 2

    def test_delay(self, deploy, model):
        """A batch waits for the delay until enough slots have a request; the delay here exceeds the test's time."""
        direct = "direct { max_queue_delay_microseconds: 100000000 minimum_slot_utilization: 0.5 }"
        model("m", ACCUMULATOR, CONFIG, batching(direct))
        server = deploy()
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda id: ids(told(server, "m", id, id, start=True)), (1, 2)))
        assert [sorted(batch) for batch in both] == [[1, 2]] * 2


class TestSlots:
    def test_backlog(self, deploy, model, wait_until):
        """A sequence without a slot waits, with all its requests, until another one has ended."""
        model("m", ACCUMULATOR, ONE_SLOT, batching(""))
        server = deploy()
        assert send(server, "m", 1, 5, start=True) == 5
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(send, server, "m", 2, 10, start=True)
            wait_until(lambda: pending(server) == 1)
            second = pool.submit(send, server, "m", 2, 20)
            wait_until(lambda: pending(server) == 2)
            assert send(server, "m", 1, 6) == 11
            assert not first.done()
            assert not second.done()
            assert send(server, "m", 1, 7, end=True) == 18
            assert (first.result(), second.result()) == (10, 30)

    def test_instance(self, deploy, model):
        """All requests of a sequence go to the instance that has its slot; sequences are spread over instances."""
        model("m", ACCUMULATOR, CONFIG, batching("") + "instance_group { kind: KIND_CPU count: 2 }")
        server = deploy()
        homes = {id: told(server, "m", id, id, start=True)["instance"] for id in (1, 2, 3, 4)}
        assert sorted(homes.values()) == ["m_0_0", "m_0_0", "m_0_1", "m_0_1"]
        for _ in range(3):
            for id, home in homes.items():
                assert told(server, "m", id, 1)["instance"] == home
        assert [send(server, "m", id, 0, end=True) for id in homes] == [4, 5, 6, 7]

    def test_idle(self, deploy, model):
        """A sequence that is idle for too long is over, and its slot is free."""
        model("m", ACCUMULATOR, ONE_SLOT, "sequence_batching { max_sequence_idle_microseconds: 200000 }")
        server = deploy()
        assert send(server, "m", 1, 5, start=True) == 5
        # It has the only slot: this waits for it.
        assert send(server, "m", 2, 6, start=True) == 6
        assert refusal(server, "m", 1, 7) == (400, f"inference request for sequence 1 to model 'm' {START_MISSING}")

    def test_timeout(self, deploy, model):
        """In the backlog a client's timeout ends its sequence."""
        model("m", ACCUMULATOR, ONE_SLOT, batching(""))
        server = deploy()
        assert send(server, "m", 1, 5, start=True) == 5
        expired = (503, "timeout of the corresponding sequence has been expired")
        assert refusal(server, "m", 2, 6, sequence_start=True, timeout=1000) == expired
        assert refusal(server, "m", 2, 7)[0] == 400
        assert send(server, "m", 1, 5, end=True) == 10

    def test_limits_of_the_backlog(self, deploy, model, wait_until):
        """The configuration may say how many sequences wait for a slot, and for how long."""
        limits = {"SEQUENCE_BACKLOG_MAX_SIZE": 1, "SEQUENCE_BACKLOG_TIMEOUT_MICROSECONDS": 2_000_000}
        model("m", ACCUMULATOR, ONE_SLOT, batching("") + parameters(**limits))
        server = deploy()
        assert send(server, "m", 1, 5, start=True) == 5
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(refusal, server, "m", 2, 6, sequence_start=True)
            wait_until(lambda: pending(server) == 1 or waiting.done())
            assert refusal(server, "m", 3, 7, sequence_start=True)[0] == 503
            assert waiting.result() == (503, "timeout of the corresponding sequence has been expired")
        assert send(server, "m", 1, 5, end=True) == 10

    def test_death(self, deploy, model):
        """The sequences of an instance that has died have to be started again."""
        model("m", ACCUMULATOR, CONFIG, batching(""))
        server = deploy()
        assert send(server, "m", 1, 5, start=True) == 5
        assert send(server, "m", 2, 5, start=True) == 5
        assert refusal(server, "m", 1, -2)[0] == 500
        assert refusal(server, "m", 2, 6) == (400, f"inference request for sequence 2 to model 'm' {START_MISSING}")
        assert send(server, "m", 1, 7, start=True) == 7


def grpc_input(value):
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.full((1, 1), value, np.int32))
    return tensor


class TestGrpc:
    def test_stream(self, server, name):
        """A client that does not wait for one answer before the next request has them in order."""
        answers = queue.Queue()
        with closing(server.grpc()) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for index in range(50):
                place = {"sequence_start": index == 0, "sequence_end": index == 49}
                client.async_stream_infer(name, [grpc_input(index)], sequence_id=77, **place)
            sums = []
            for _ in range(50):
                result, error = answers.get(timeout=LIMIT_S)
                assert error is None
                sums.append(int(result.as_numpy("OUT")[0, 0]))
            client.stop_stream()
        assert sums == list(np.cumsum(range(50)))

    def test_one_sequence_behind_another(self, server, name):
        """The same id may be used again behind an END, without waiting for that."""
        answers = queue.Queue()
        with closing(server.grpc()) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for _ in range(20):
                for value, start, end in ((5, True, False), (6, False, True)):
                    place = {"sequence_start": start, "sequence_end": end}
                    client.async_stream_infer(name, [grpc_input(value)], sequence_id=78, **place)
            sums = [int(answers.get(timeout=LIMIT_S)[0].as_numpy("OUT")[0, 0]) for _ in range(40)]
            client.stop_stream()
        assert sums == [5, 11] * 20

    def test_cancel(self, deploy, model, wait_until):
        """Cancelling a waiting request cancels all waiting requests of its sequence, and ends the sequence."""
        folder = model("m", ACCUMULATOR, ONE_SLOT, batching(""))
        server = deploy()
        answers = queue.Queue()
        with closing(server.grpc()) as client, ThreadPoolExecutor(1) as pool:
            held = pool.submit(send, server, "m", 1, -1, start=True)
            wait_until((folder / "running").exists)
            calls = []
            for index in range(3):
                place = {"sequence_id": 2, "sequence_start": index == 0}
                answer = lambda result, error, index=index: answers.put((index, error.status()))  # noqa: E731
                calls.append(client.async_infer("m", [grpc_input(5)], answer, **place))
                wait_until(lambda: pending(server) == len(calls))
            calls[1].cancel()
            wait_until(lambda: pending(server) == 0)
            (folder / "go").touch()
            assert held.result() == -1
            assert sorted(answers.get(timeout=LIMIT_S) for _ in calls) == [
                (index, "StatusCode.CANCELLED") for index in range(3)
            ]
        assert send(server, "m", 1, 1, end=True) == 0
        assert refusal(server, "m", 2, 1)[0] == 400

    def test_refusal(self, server, name):
        """A request that does not belong to a sequence is INVALID_ARGUMENT."""
        with closing(server.grpc()) as client, pytest.raises(InferenceServerException) as caught:
            client.infer(name, [grpc_input(1)], sequence_id=79)
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert caught.value.message() == f"inference request for sequence 79 to model '{name}' {START_MISSING}"


# Writes down which sequences it is told to drop.
DROPS = """
    PREFIXdef drop_sequences(self, correlation_ids):
        for id in correlation_ids:
            del self.sums[id]
        with open(self.folder + "/dropped", "a") as file:
            print(json.dumps(correlation_ids), file=file)
"""


def dropped(folder):
    """What the model has written of dropped sequences. Its file exists before it has any of that."""
    file = folder / "dropped"
    return file.read_text() if file.exists() else ""


class TestAbandoned:
    @pytest.mark.parametrize("prefix", ["", "async "])
    def test_idle(self, deploy, model, wait_until, prefix):
        """A model is told of a sequence that is idle for too long, and not of one that ends by END."""
        drops = DROPS.replace("PREFIX", prefix)
        folder = model("m", ACCUMULATOR + drops, CONFIG, "sequence_batching { max_sequence_idle_microseconds: 200000 }")
        server = deploy()
        assert send(server, "m", 1, 5, start=True) == 5
        assert send(server, "m", 2, 5, start=True, end=True) == 5
        wait_until(lambda: dropped(folder))
        assert dropped(folder) == "[1]\n"
        assert send(server, "m", 1, 5, start=True, end=True) == 5

    def test_stream_client_leaves(self, deploy, model, wait_until):
        """A model is told of a sequence whose client leaves while a request waits, and after the one that runs."""
        folder = model("m", ACCUMULATOR + DROPS.replace("PREFIX", ""), CONFIG, batching(""))
        server = deploy()
        assert send(server, "m", 1, 5, start=True) == 5
        client = server.grpc()
        client.start_stream(lambda result, error: None)
        for value in (-1, 6):
            client.async_stream_infer("m", [grpc_input(value)], sequence_id=1)
        wait_until((folder / "running").exists)
        wait_until(lambda: pending(server) == 1)
        client.stop_stream(cancel_requests=True)
        client.close()
        wait_until(lambda: pending(server) == 0)
        assert not (folder / "dropped").exists()
        (folder / "go").touch()
        wait_until(lambda: dropped(folder))
        assert dropped(folder) == "[1]\n"
        assert refusal(server, "m", 1, 7)[0] == 400

    def test_exception(self, deploy, model, wait_until):
        """An exception of the method is logged, and requests go on."""
        drops = "\n    def drop_sequences(self, correlation_ids):\n        raise ValueError(correlation_ids)\n"
        model("m", ACCUMULATOR + drops, CONFIG, "sequence_batching { max_sequence_idle_microseconds: 200000 }")
        server = deploy()
        assert send(server, "m", 1, 5, start=True) == 5
        wait_until(lambda: "ValueError: [1]" in server.log)
        assert send(server, "m", 1, 6, start=True, end=True) == 6
        assert "drop_sequences failed" in server.log


# Asks the accumulator for the sum of three, as a sequence of its own.
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor, flags = request.inputs()[0], [pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, 0, 0]
        flags[-1] = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
        for flag in flags:
            call = pb_utils.InferenceRequest(
                model_name="direct", requested_output_names=["OUT"], inputs=[tensor], correlation_id=9, flags=flag)
            response = call.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", response.output_tensors()[0].as_numpy())])
"""
# Sends the current sum of a sequence, as often as its number says.
DECOUPLED = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, array = request.get_response_sender(), pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for index in range(array.flat[0]):
                answer = np.array([[array.flat[0] * 10 + index]], np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Counts down its input, one execution for each step: only the first one of them is a start.
AGAIN = """
class TritonPythonModel:
    def initialize(self, args):
        self.seen = {}

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        id = request.correlation_id()
        start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().item()
        self.seen.setdefault(id, []).append(start)
        if len(self.seen[id]) < pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().item():
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        told = {"starts": json.dumps(self.seen.pop(id))}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 1), np.int32))], parameters=told)
"""


class TestKindsOfModels:
    def test_called_by_a_model(self, deploy, model):
        """A model may begin a sequence of another one."""
        model("direct", ACCUMULATOR, CONFIG, batching(CONTROLS))
        model("caller", CALLER, CONFIG)
        server = deploy()
        assert send(server, "caller", 0, 7) == 21
        assert refusal(server, "direct", 9, 1)[0] == 400

    @pytest.mark.parametrize("controls", ["", CONTROLS])
    def test_decoupled(self, deploy, model, controls):
        """A request may have any number of responses, and the next one of the sequence follows.

        Responses to padding are dropped.
        """
        model("m", DECOUPLED, CONFIG, batching(controls) + "model_transaction_policy { decoupled: true }")
        server = deploy()
        answers = queue.Queue()
        with closing(server.grpc()) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer("m", [grpc_input(1)], sequence_id=76, sequence_start=True)
            assert answers.get(timeout=LIMIT_S)[0].as_numpy("OUT").item() == 10
            for index in (2, 0, 3):
                place = {"sequence_start": index == 2, "sequence_end": index == 3}
                client.async_stream_infer("m", [grpc_input(index)], sequence_id=77, **place)
            values = [int(answers.get(timeout=LIMIT_S)[0].as_numpy("OUT")[0, 0]) for _ in range(5)]
            client.stop_stream()
        assert values == [20, 21, 30, 31, 32]
        statistics = json.loads(server.request("GET", "/v2/models/m/stats").body)["model_stats"][0]
        assert statistics["inference_count"] == statistics["inference_stats"]["success"]["count"] == 4
        # The response of the first request, and of two others; of one there was none.
        first = statistics["response_stats"]["0"]
        assert (first["success"]["count"], first["empty_response"]["count"]) == (3, 1)

    def test_iterative(self, deploy, model):
        """A request that its model reschedules is a sequence of its own, with control inputs if the model has some."""
        start = '{ name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] }'
        model("m", AGAIN, ONE_SLOT, batching(f"iterative_sequence: true control_input [ {start} ]"))
        server = deploy()
        for times in (3, 1, 2):
            result = server.infer("m", {"IN": np.full((1, 1), times, np.int32)})
            assert json.loads(result.get_response()["parameters"]["starts"]) == [1, 0, 0][:times]

    def test_iterative_without_controls(self, deploy, model):
        """Requests that are sequences of their own share batches, and `sequence_batching` holds for them, too."""
        oldest = "oldest { max_candidate_sequences: 2 preferred_batch_size: 2 max_queue_delay_microseconds: 600000000 }"
        model("m", TOGETHER, CONFIG, batching(f"iterative_sequence: true {oldest}"))
        server = deploy()
        with ThreadPoolExecutor() as clients:
            found = [clients.submit(server.infer, "m", {"IN": np.full((1, 1), 3, np.int32)}) for _ in range(2)]
            assert [each.result().as_numpy("OUT").item() for each in found] == [222, 222]
        assert "must specify batch-size 1" in server.refusal("m", {"IN": np.ones((2, 1), np.int32)})[1]
        assert START_MISSING in server.refusal("m", {"IN": np.ones((1, 1), np.int32)}, sequence_id=7)[1]

    def test_native(self, serve, model, tmp_path_factory, compile_library, wait_until, raw):
        """A native backend has the states that the server keeps for it, and padding with states of its own."""
        folder = tmp_path_factory.mktemp("backends")
        (folder / "state").mkdir()
        shutil.copy(compile_library("state.cc"), folder / "state" / "libtriton_state.so")
        state = 'input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ 1 ]'
        initial = 'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 1 ] data_file: "hundred" }'
        ready = '{ name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] }'
        config = CONFIG.replace('"python"', '"state"').replace('"IN"', '"INPUT"').replace('"OUT"', '"OUTPUT"')
        batches = batching(f"control_input [ {ready} ] state {{ {state} {initial} }}")
        path = model("m", None, config, batches)
        (path / "initial_state").mkdir()
        (path / "initial_state" / "hundred").write_bytes(np.int32(100).tobytes())
        server = serve(f"--backend-directory={folder}")

        def add(id, value, **flags):
            array = np.full((1, 1), value, np.int32)
            return int(server.infer("m", {"INPUT": array}, sequence_id=id, **flags).as_numpy("OUTPUT")[0, 0])

        assert [add(1, 1, sequence_start=True), add(2, 10, sequence_start=True)] == [101, 110]
        assert [add(2, 20), add(1, 2), add(2, 30, sequence_end=True)] == [130, 103, 160]
        assert add(1, 5, sequence_start=True) == 105
        # The backend answers before it reports its statistics.
        wait_until(lambda: raw.counts(server, "m") == (6, 0, 6, 6))
        statistics = json.loads(server.request("GET", "/v2/models/m/stats").body)["model_stats"][0]
        assert [batch["batch_size"] for batch in statistics["batch_stats"]] == [1, 2]
