# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`preserve_ordering` of decoupled models: responses of real processes, in the order of their requests."""

import json
import queue
import socket
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest
import tritonclient.grpc

from pyruntime.utils.flow_control import RESPONSES_AHEAD_MAX

from .harness.raw import reset
from .harness.waiting import LIMIT_S

CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
# The two requests of a test are one batch, however late the second one comes.
PAIR = "max_queue_delay_microseconds: 600000000 "
# Sends as many responses as a request says: from one thread, to all requests in turn, or first all to the last request.
SENDERS = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def count(request):
    return int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])

def response(number):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[number]], np.int32))])

class TritonPythonModel:
    def execute(self, requests):
        assert len(requests) == 2
        senders = [request.get_response_sender() for request in requests]
        counts = [count(request) for request in requests]
        for number, index in self.plan(counts):
            senders[index].send(response(number))
            if number == counts[index] - 1:
                senders[index].send(flags=FINAL)

    def plan(self, counts):
        PLAN
"""
PLANS = {
    "in turn": "return [(number, index) for number in range(max(counts)) for index in (0, 1)]",
    "reversed": "return [(number, index) for index in (1, 0) for number in range(counts[index])]",
}
# The request with the number 0 is answered when there is a gate.
INSTANCES = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        sender = request.get_response_sender()
        number = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
        gate = self.folder + "/gate"
        while not number and not os.path.exists(gate):
            time.sleep(0.001)
        for each in range(3):
            array = np.array([[10 * number + each]], np.int32)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        OPEN
"""
OPEN = "if number: open(gate, 'w').close()"

# Sends three responses: large ones to the request with the number 1. That with the number 0 waits for a gate first.
LARGE = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        sender = request.get_response_sender()
        number = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
        if not number:
            open(self.folder + "/begun", "w").close()
        while not number and not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        for each in range(3):
            array = np.full((1, (32 << 20) // 4 if number == 1 else 1), 10 * number + each, np.int32)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with open(self.folder + "/sent", "a") as file:
            file.write(str(number))
"""
LARGE_BYTES = 3 * (32 << 20)
# Sends to two requests in turn, and waits for a gate half way.
HALVES = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        senders = [request.get_response_sender() for request in requests]
        count = int(pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy().flat[0])
        for number in range(count):
            if number == count // 2:
                open(self.folder + "/begun", "w").close()
                while not os.path.exists(self.folder + "/gate") or not senders[1].is_cancelled():
                    time.sleep(0.001)
            for sender in senders:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[number]], np.int32))]))
        for sender in senders:
            sender.send(flags=FINAL)
"""


class Stream:
    """A gRPC stream, and what comes over it."""

    def __init__(self, client):
        self._client = client
        self._answers = queue.Queue()
        client.start_stream(lambda result, error: self._answers.put((result, error)))

    def send(self, id, value, **options):
        """Send a request."""
        tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.full((1, 1), value, np.int32))
        self._client.async_stream_infer("m", [tensor], request_id=id, enable_empty_final_response=True, **options)

    def read(self, requests):
        """The answers to so many requests: the id and the value of each response, with None for the end of one."""
        got = []
        while requests:
            result, error = self._answers.get(timeout=LIMIT_S)
            assert error is None
            response = result.get_response()
            if response.parameters["triton_final_response"].bool_param:
                requests -= 1
            got.append((response.id, int(result.as_numpy("OUT").item()) if response.outputs else None))
        return got


def answers(id, values):
    """What Stream.read returns for one request."""
    return [(id, value) for value in [*values, None]]


def batching(kind):
    """Batching of two requests, whose responses keep their order."""
    if kind == "dynamic":
        return f"dynamic_batching {{ preserve_ordering: true preferred_batch_size: 2 {PAIR} }}"
    oldest = f"oldest {{ preserve_ordering: true max_candidate_sequences: 2 preferred_batch_size: 2 {PAIR} }}"
    return f"sequence_batching {{ max_sequence_idle_microseconds: 100000000 {oldest} }}"


@pytest.mark.parametrize("kind", ["dynamic", "oldest"])
@pytest.mark.parametrize("plan", PLANS)
def test_one_thread_sends_to_several_requests(model, deploy, kind, plan):
    """A model is not stopped by responses that wait for their turn, however many they are."""
    model("m", SENDERS.replace("PLAN", PLANS[plan]), CONFIG, batching(kind))
    server = deploy()
    count = RESPONSES_AHEAD_MAX + 200
    with closing(server.grpc()) as client:
        stream = Stream(client)
        for number, id in enumerate("ab", 1):
            place = {"sequence_id": number, "sequence_start": True, "sequence_end": True} if kind == "oldest" else {}
            stream.send(id, count, **place)
        assert stream.read(2) == answers("a", range(count)) + answers("b", range(count))
        client.stop_stream()


def test_two_instances(model, deploy):
    """The stream of the instance that is faster comes after that of the request which left the queue first."""
    more = "instance_group { count: 2 } dynamic_batching { preserve_ordering: true }"
    model("m", INSTANCES.replace("OPEN", OPEN), CONFIG, more)
    server = deploy()
    with closing(server.grpc()) as client:
        stream = Stream(client)
        stream.send("a", 0)
        stream.send("b", 1)
        assert stream.read(2) == answers("a", [0, 1, 2]) + answers("b", [10, 11, 12])
        client.stop_stream()


def test_instances_of_sequences(model, deploy):
    """With `oldest` the responses of one instance wait for nothing of another one."""
    oldest = "oldest { preserve_ordering: true max_candidate_sequences: 1 }"
    more = f"instance_group {{ count: 2 }} sequence_batching {{ max_sequence_idle_microseconds: 100000000 {oldest} }}"
    folder = model("m", INSTANCES.replace("OPEN", ""), CONFIG, more)
    server = deploy()
    with closing(server.grpc()) as client:
        stream = Stream(client)
        for number, id in enumerate("ab"):
            stream.send(id, number, sequence_id=number + 1, sequence_start=True, sequence_end=True)
        assert stream.read(1) == answers("b", [10, 11, 12])
        (folder / "gate").touch()
        assert stream.read(1) == answers("a", [0, 1, 2])
        client.stop_stream()


@contextmanager
def streaming(server, number):
    """A connection over which a stream was asked for by HTTP, and a file of what comes."""
    body = json.dumps({"IN": [number]}).encode()
    with server.connect() as sock, sock.makefile("rb") as file:
        sock.sendall(b"POST /v2/models/m/generate_stream HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        yield sock, file


def outputs(file):
    """The outputs of a whole stream."""
    return [json.loads(line[6:])["OUT"] for line in file if line.startswith(b"data: ")]


@pytest.mark.parametrize("leave", [reset, socket.socket.close], ids=["reset", "close"])
def test_clients_leave_while_responses_are_held(model, deploy, wait_until, leave):
    """The memory of held responses is free when their clients leave, and the requests beside them go on."""
    config = CONFIG.replace('"OUT" data_type: TYPE_INT32 dims: [ 1 ]', '"OUT" data_type: TYPE_INT32 dims: [ -1 ]')
    folder = model("m", LARGE, config, "instance_group { count: 2 } dynamic_batching { preserve_ordering: true }")
    server = deploy()
    idle, used = server.shared_bytes(), []
    with ExitStack() as stack:
        _, first = stack.enter_context(streaming(server, 0))
        wait_until((folder / "begun").exists)
        for count in range(1, 7):
            with streaming(server, 1) as (sock, _):
                wait_until(
                    lambda count=count: (folder / "sent").exists() and len((folder / "sent").read_text()) == count
                )
                used.append(server.shared_bytes())
                leave(sock)
        _, last = stack.enter_context(streaming(server, 2))
        wait_until(lambda: (folder / "sent").read_text() == "1111112")
        (folder / "gate").touch()
        assert outputs(first) == [0, 1, 2]
        assert outputs(last) == [20, 21, 22]
    assert used[0] >= idle + LARGE_BYTES
    # The instance may begin to send before it has heard that what it has sent before is free.
    assert max(used) <= idle + 2.5 * LARGE_BYTES


def test_client_leaves_a_batch(model, deploy, wait_until):
    """A thread goes on to send to the first request of its batch when the client of the second one has left."""
    folder = model("m", HALVES, CONFIG, batching("dynamic"))
    server = deploy()
    count = 2 * RESPONSES_AHEAD_MAX
    with streaming(server, count) as (_, first):
        server.settle()
        with streaming(server, count) as (sock, _):
            wait_until((folder / "begun").exists)
            reset(sock)
        (folder / "gate").touch()
        assert outputs(first) == list(range(count))
    with streaming(server, 0) as (_, first), streaming(server, 0) as (_, second):
        assert (outputs(first), outputs(second)) == ([], [])
