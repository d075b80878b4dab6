# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, and calls that are cancelled: requests that have not begun never do, running ones can see it, and
others are not affected.
"""

import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from .harness.waiting import LIMIT_S

INPUT = {"IN": np.array([1, 2])}
DECOUPLED = "model_transaction_policy { decoupled: true }"
# Each request's number selects the action: 0 answers at once, other numbers wait until they are cancelled.
PATIENT = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def tell(self, name, number):
        with open(f"{self.folder}/{name}", "a") as file:
            file.write(f"{number}\\n")

    def wait(self, request, number):
        self.tell("begun", number)
        sender = request.get_response_sender()
        while not request.is_cancelled():
            assert not sender.is_cancelled() or request.is_cancelled()
            time.sleep(0.001)
        assert sender.is_cancelled() and request.is_cancelled() and sender.is_cancelled()
        self.tell("cancelled", number)

    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            if request.is_cancelled():
                self.tell("cancelled_before", array.flat[0])
            self.tell("executed", array.flat[0])
            if array.flat[0]:
                self.wait(request, array.flat[0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return responses
"""
# Executes its requests when its gate is open, and notes the cancelled ones.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        with open(self.folder + "/executed", "a") as file:
            file.write("".join(f"{request.inputs()[0].as_numpy().flat[0]}\\n" for request in requests))
        while not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        with open(self.folder + "/cancelled", "a") as file:
            file.write("".join(f"{request.inputs()[0].as_numpy().flat[0]}\\n" for request in requests
                               if request.is_cancelled()))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
# Calls the model that the parameter names; in the way that it says.
CALLER = """
import asyncio

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        parameters = json.loads(request.parameters())
        first, _, rest = parameters["path"].partition(" ")
        self.call = pb_utils.InferenceRequest(model_name=first, inputs=request.inputs(), parameters={"path": rest})
        assert not self.call.is_cancelled()
        outputs = getattr(self, "do_" + parameters.get("how", "exec"))()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(outputs))])]

    def do_exec(self):
        response = self.call.exec()
        assert not response.has_error(), response.error().message()
        return [1]

    def do_iterator(self):
        for response in self.call.exec(decoupled=True):
            assert not response.has_error(), response.error().message()
        return [2]

    def do_thread(self):
        thread = threading.Thread(target=self.do_exec)
        thread.start()
        thread.join()
        return [3]

    def do_coroutine(self):
        async def call():
            assert not (await self.call.async_exec()).has_error()
        asyncio.run(call())
        return [4]

    def do_cancel_the_iterator(self):
        iterator = self.call.exec(decoupled=True)
        self.wait_begun()
        iterator.cancel()
        assert [response.has_error() for response in iterator] == [False]
        return [5]

    def do_cancel_the_task(self):
        async def call():
            task = self.call.async_exec()
            self.wait_begun()
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return
            raise AssertionError("it was cancelled")
        asyncio.run(call())
        return [6]

    def do_cancel_what_queues(self):
        async def call():
            tasks = [self.call.async_exec() for _ in range(5)]
            for task in tasks[1:]:
                task.cancel()
            found = await asyncio.gather(*tasks[1:], return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in found)
            open(os.path.dirname(self.folder) + "/gated/gate", "w").close()
            assert not (await tasks[0]).has_error()
        asyncio.run(call())
        return [7]

    def do_many(self):
        for number in range(5000):
            response = pb_utils.InferenceRequest(
                model_name="patient", inputs=[pb_utils.Tensor("IN", np.zeros(2, np.int64))]
            ).exec()
            assert not response.has_error(), response.error().message()
        return [8]

    def wait_begun(self):
        path = os.path.dirname(self.folder) + "/patient/begun"
        while not os.path.exists(path):
            time.sleep(0.001)
"""
# Answers in a thread, after execute has returned.
LATE = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()

    def answer(self, sender):
        open(self.folder + "/begun", "w").close()
        while not sender.is_cancelled():
            time.sleep(0.001)
        open(self.folder + "/cancelled", "w").close()
        sender.send(pb_utils.InferenceResponse([]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COROUTINES = """
import asyncio

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    async def execute(self, requests):
        for request in requests:
            open(self.folder + "/begun", "w").close()
            while not request.is_cancelled():
                await asyncio.sleep(0.001)
            open(self.folder + "/cancelled", "w").close()
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def send(server, model, numbers, **parameters):
    """Send a request, and do not wait: a connection."""
    array = np.array(numbers)
    tensor = {"name": "IN", "shape": array.shape, "datatype": "INT64", "data": array.ravel().tolist()}
    return post(server, f"{model}/infer", {"inputs": [tensor], "parameters": parameters})


def post(server, path, document):
    """Post a document to a model, and do not wait: a connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.request("POST", f"/v2/models/{path}", json.dumps(document))
    return connection


def call(server, caller, path, how="exec"):
    """Send a request to a model that calls others."""
    return send(server, caller, [1], path=path, how=how)


def receive(connection):
    """The output of a request that was sent."""
    with closing(connection):
        return json.loads(connection.getresponse().read())["outputs"][0]["data"]


def numbers_in(path):
    """The numbers that a model wrote down."""
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def answers(server, model="patient"):
    """Whether a model goes on."""
    return server.infer(model, {"IN": np.zeros(2, np.int64)}).as_numpy("OUT").tolist() == [0, 0]


class TestRunning:
    def test_client_leaves(self, model, deploy, wait_until):
        """A running request, and its sender, see the cancellation; the next request is not affected."""
        folder = model("patient", PATIENT)
        server = deploy()
        for number in range(1, 4):
            connection = send(server, "patient", [number])
            wait_until(lambda number=number: number in numbers_in(folder / "begun"))
            connection.close()
            wait_until(lambda number=number: number in numbers_in(folder / "cancelled"))
            assert answers(server)
        assert numbers_in(folder / "cancelled") == [1, 2, 3]
        assert numbers_in(folder / "cancelled_before") == []

    def test_client_of_another_request_of_the_batch_stays(self, model, deploy, wait_until):
        """Of a batch only those are cancelled whose clients leave."""
        folder = model(
            "gated", GATED, more="max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 4 ] "
            "max_queue_delay_microseconds: 600000000 }",
        )  # fmt: skip
        server = deploy()
        connections = [send(server, "gated", [[number]]) for number in range(4)]
        wait_until(lambda: len(numbers_in(folder / "executed")) == 4)
        connections[1].close()
        connections[3].close()
        server.settle()
        (folder / "gate").touch()
        assert [receive(connections[index]) for index in (0, 2)] == [[0], [2]]
        assert sorted(numbers_in(folder / "cancelled")) == [1, 3]

    @pytest.mark.parametrize("decoupled", [False, True])
    def test_after_execute_has_returned(self, model, deploy, wait_until, decoupled):
        """A sender that answers later learns it, too."""
        folder = model("late", LATE, more=DECOUPLED if decoupled else "")
        server = deploy()
        connection = post(server, "late/generate_stream", {"IN": 1})
        wait_until((folder / "begun").exists)
        connection.close()
        wait_until((folder / "cancelled").exists)

    def test_coroutine(self, model, deploy, wait_until):
        """A coroutine in the background sees the cancellation as well."""
        folder = model("coroutines", COROUTINES, more=DECOUPLED)
        server = deploy()
        connection = post(server, "coroutines/generate_stream", {"IN": 1})
        wait_until((folder / "begun").exists)
        connection.close()
        wait_until((folder / "cancelled").exists)

    def test_nobody_else_is_cancelled(self, model, deploy, wait_until):
        """Thousands of later requests are not cancelled, although they share flags with the cancelled one."""
        folder = model("patient", PATIENT)
        model("caller", CALLER)
        server = deploy()
        connection = send(server, "patient", [1])
        wait_until((folder / "begun").exists)
        connection.close()
        parameters = {"path": "patient", "how": "many"}
        assert server.infer("caller", INPUT, parameters=parameters).as_numpy("OUT").tolist() == [8]
        assert numbers_in(folder / "cancelled_before") == []

    def test_memory_comes_back(self, model, serve, wait_until):
        """The memory of requests whose clients left is used again."""
        folder = model("patient", PATIENT)
        server = serve()
        count = 1 << 14
        for number in range(1, 41):
            connection = send(server, "patient", [number, *[0] * count])
            wait_until(lambda number=number: number in numbers_in(folder / "begun"))
            connection.close()
            wait_until(lambda number=number: number in numbers_in(folder / "cancelled"))
            assert answers(server)
            if number == 10:
                before = server.shared_bytes()
        assert server.shared_bytes() <= before + 8 * count


class TestQueued:
    def test_clients_leave(self, model, deploy, wait_until):
        """An abandoned request that has not begun is never executed; those beside it are."""
        folder = model("gated", GATED, more="max_batch_size: 8 dynamic_batching { }")
        server = deploy()
        first = send(server, "gated", [[1]])
        wait_until(lambda: numbers_in(folder / "executed") == [1])
        waiting = []
        for number in range(2, 8):
            waiting.append(send(server, "gated", [[number]]))
            server.settle()  # requests of several connections are read in any order
        for connection in waiting[::2]:
            connection.close()
        server.settle()
        (folder / "gate").touch()
        assert receive(first) == [1]
        assert [receive(connection) for connection in waiting[1::2]] == [[3], [5], [7]]
        assert numbers_in(folder / "executed") == [1, 3, 5, 7]
        assert numbers_in(folder / "cancelled") == []

    def test_posted_ahead(self, model, deploy, wait_until):
        """An abandoned request that was posted to the stub already is executed, and is cancelled from the beginning."""
        folder = model("gated", GATED)
        server = deploy()
        first = send(server, "gated", [1])
        wait_until(lambda: numbers_in(folder / "executed") == [1])
        second = send(server, "gated", [2])
        server.settle()
        second.close()
        server.settle()
        (folder / "gate").touch()
        assert receive(first) == [1]
        wait_until(lambda: numbers_in(folder / "executed") == [1, 2])
        wait_until(lambda: numbers_in(folder / "cancelled") == [2])


class TestCalls:
    @pytest.mark.parametrize("how", ["exec", "iterator", "thread", "coroutine"])
    def test_client_of_the_caller_leaves(self, model, deploy, wait_until, how):
        """A call that a cancelled request waits for is cancelled with it."""
        folder = model("patient", PATIENT)
        model("caller", CALLER)
        server = deploy()
        connection = call(server, "caller", "patient", how)
        wait_until((folder / "begun").exists)
        connection.close()
        wait_until((folder / "cancelled").exists)
        assert answers(server)

    def test_of_a_chain(self, model, deploy, wait_until):
        """A cancellation reaches the end of a chain of calls."""
        folder = model("patient", PATIENT)
        for name in ("a", "b", "c"):
            model(name, CALLER)
        server = deploy()
        connection = call(server, "a", "b c patient")
        wait_until((folder / "begun").exists)
        connection.close()
        wait_until((folder / "cancelled").exists)
        assert answers(server)

    @pytest.mark.parametrize(("how", "answer"), [("cancel_the_iterator", 5), ("cancel_the_task", 6)])
    def test_by_the_caller(self, model, deploy, wait_until, how, answer):
        """A caller may cancel its call, and goes on at once; the callee can see it."""
        folder = model("patient", PATIENT)
        model("caller", CALLER)
        server = deploy()
        assert receive(call(server, "caller", "patient", how)) == [answer]
        wait_until((folder / "cancelled").exists)
        assert answers(server)

    def test_by_the_caller_while_they_queue(self, model, deploy):
        """Calls that have not begun never do."""
        folder = model("gated", GATED, more="max_batch_size: 1 dynamic_batching { }")
        model("caller", CALLER.replace("inputs=request.inputs()", 'inputs=[pb_utils.Tensor("IN", np.array([[1]]))]'))
        server = deploy()
        assert receive(call(server, "caller", "gated", "cancel_what_queues")) == [7]
        assert numbers_in(folder / "executed") == [1]

    def test_caller_dies(self, model, deploy, wait_until):
        """The callee of a stub that died sees the cancellation."""
        folder = model("patient", PATIENT)
        model("caller", CALLER)
        server = deploy()
        with ThreadPoolExecutor() as clients:
            lost = clients.submit(server.refusal, "caller", {"IN": np.array([1])}, parameters={"path": "patient"})
            wait_until((folder / "begun").exists)
            os.kill(server.stub("caller_0").pid, signal.SIGKILL)
            assert "is not healthy" in lost.result()[1]
        wait_until((folder / "cancelled").exists)
        assert answers(server)
