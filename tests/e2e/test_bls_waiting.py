# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models that wait for models: missing callees, circles of waits, and deaths meanwhile."""

import http.client
import json
import os
import re
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .harness.waiting import LIMIT_S

INPUT = {"IN": np.array([1, 2])}
DECOUPLED = "model_transaction_policy { decoupled: true }"
# Calls the first of the models that the request's parameter `path` names, which calls the next, and so on. The last one
# answers. `meet` has it wait, before it calls, until a number of files are in the repository; it makes one itself.
NODE = """
class TritonPythonModel:
    def initialize(self, args):
        self.repository = os.path.dirname(args["model_repository"])
        self.instance = args["model_instance_name"]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        parameters = json.loads(request.parameters())
        array = request.inputs()[0].as_numpy()
        first, _, rest = parameters.get("path", "").partition(" ")
        if "meet" in parameters:
            open(f"{self.repository}/met_{self.instance}", "w").close()
            while len([name for name in os.listdir(self.repository) if name.startswith("met_")]) < parameters["meet"]:
                time.sleep(0.001)
        if not first:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
        call = pb_utils.InferenceRequest(model_name=first, inputs=request.inputs(), parameters={"path": rest})
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        tensor = pb_utils.get_output_tensor_by_name(response, "OUT")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy() + 1)])
"""
TWO = "instance_group [ { count: 2 } ]"
# Tells that it has begun, and goes on when a file is there.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            with open(self.folder + "/begun", "a") as file:
                file.write("x")
            while not os.path.exists(self.folder + "/gate"):
                time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""


def ask(server, model, path="", **parameters):
    """The output of a model that calls others."""
    parameters = {"path": path, **parameters}
    return server.infer(model, INPUT, parameters=parameters).as_numpy("OUT").tolist()


def outcome(server, model, path="", **parameters):
    """The output, or the message of the error."""
    try:
        return ask(server, model, path, **parameters)
    except InferenceServerException as exc:
        return exc.message()


def send(server, model, *numbers):
    """Send a request, and do not wait: a connection."""
    document = {"inputs": [{"name": "IN", "shape": [len(numbers)], "datatype": "INT64", "data": numbers}]}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.request("POST", f"/v2/models/{model}/infer", json.dumps(document))
    return connection


def receive(connection):
    """The output of a request that was sent."""
    with closing(connection):
        return json.loads(connection.getresponse().read())["outputs"][0]["data"]


def would_wait(callee, cycle):
    """The refusal of a call that closes a cycle."""
    return (
        f"Model {callee} - Error when running inference: the call would wait for ever, because every instance that "
        f"could serve it waits for this one: {cycle}. Give one of these models more instances"
    )


class TestChains:
    def test_of_ten_models(self, model, deploy):
        """Each of ten models calls the next."""
        for number in range(10):
            model(f"m{number}", NODE)
        server = deploy()
        path = " ".join(f"m{number}" for number in range(1, 10))
        assert ask(server, "m0", path) == [10, 11]

    def test_under_load(self, model, deploy):
        """Models that call the same other ones, from many clients."""
        for name in "abcd":
            model(name, NODE)
        server = deploy()
        with ThreadPoolExecutor(8) as clients:
            found = [
                clients.submit(ask, server, *way) for way in [("a", "b d"), ("b", "c d"), ("a", "d"), ("c", "")] * 100
            ]
            assert [each.result() for each in found] == [[3, 4], [3, 4], [2, 3], [1, 2]] * 100

    def test_statistics(self, model, deploy):
        """A call counts as a request of the callee."""
        for name in "ab":
            model(name, NODE)
        server = deploy()
        for _ in range(3):
            ask(server, "a", "b")
        document = json.loads(server.request("GET", "/v2/models/b/stats").body)["model_stats"][0]
        assert document["inference_stats"]["success"]["count"] == 3


class TestCycles:
    def test_itself(self, model, deploy):
        """A model whose only instance calls itself is refused, at once."""
        model("a", NODE)
        server = deploy()
        assert server.refusal("a", INPUT, parameters={"path": "a"}) == (503, would_wait("a", "a -> a"))
        assert ask(server, "a") == [1, 2]

    def test_itself_with_another_instance(self, model, deploy):
        """With as many instances as are needed it works."""
        model("a", NODE, more=TWO)
        server = deploy()
        for _ in range(20):
            assert ask(server, "a", "a") == [2, 3]
        assert outcome(server, "a", "a a") == would_wait("a", "a -> a")

    def test_deep_recursion(self, model, deploy):
        """A model of five instances may call itself four times over."""
        model("a", NODE, more="instance_group [ { count: 5 } ]")
        server = deploy()
        assert ask(server, "a", "a a a a") == [5, 6]
        assert outcome(server, "a", "a a a a a") == would_wait("a", "a -> a")

    def test_of_two(self, model, deploy):
        """The call that closes a cycle is refused, and its caller may say so."""
        model("a", NODE)
        model("b", NODE)
        server = deploy()
        assert outcome(server, "a", "b a") == would_wait("a", "b -> a -> b")
        assert ask(server, "a", "b") == [2, 3]
        assert ask(server, "b", "a") == [2, 3]

    def test_of_two_with_another_instance(self, model, deploy):
        """One more instance of one of them is enough."""
        model("a", NODE, more=TWO)
        model("b", NODE)
        server = deploy()
        for _ in range(20):
            assert ask(server, "a", "b a") == [3, 4]

    def test_of_three(self, model, deploy):
        """A longer cycle is reported from its last call on."""
        for name in "abc":
            model(name, NODE)
        server = deploy()
        assert outcome(server, "a", "b c a") == would_wait("a", "c -> a -> b -> c")

    def test_two_that_call_one_another(self, model, deploy, tmp_path):
        """Of two callers that wait for each other one is refused, and the other one answered."""
        model("a", NODE)
        model("b", NODE)
        server = deploy()
        with ThreadPoolExecutor() as clients:
            found = [clients.submit(outcome, server, *way, meet=2) for way in (("a", "b"), ("b", "a"))]
            found = [each.result() for each in found]
        assert [2, 3] in found
        found.remove([2, 3])
        assert found[0] in (would_wait("a", "b -> a -> b"), would_wait("b", "a -> b -> a"))

    @pytest.mark.parametrize("count", [1, 2])
    def test_under_load(self, model, deploy, count):
        """In any order, every request is answered: with its result, or with the reason why there is none."""
        for name in "ab":
            model(name, NODE, more=f"instance_group [ {{ count: {count} }} ]")
        server = deploy()
        refused = re.compile(r"Model [ab] - Error when running inference: the call would wait for ever, .* [ab] -> .*")
        with ThreadPoolExecutor(8) as clients:
            found = [clients.submit(outcome, server, *way) for way in [("a", "b"), ("b", "a")] * 200]
            found = Counter("answered" if each.result() == [2, 3] else each.result() for each in found)
        assert found.pop("answered") > 0
        assert all(refused.fullmatch(message) for message in found), found
        assert ask(server, "a", "b") == ask(server, "b", "a") == [2, 3]


class TestPlacesAhead:
    # Fast until it must call; its instances read their commands from files.
    CALLER = """
class TritonPythonModel:
    def initialize(self, args):
        self.path = args["model_repository"] + "/" + args["model_instance_name"]

    def execute(self, requests):
        for request in requests:
            if request.request_id() == "stop":
                open(self.path + "_stopped", "w").close()
                while not os.path.exists(self.path + "_gate"):
                    time.sleep(0.001)
                if os.path.exists(self.path + "_calls"):
                    pb_utils.InferenceRequest(model_name="gated", inputs=request.inputs()).exec()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""

    def test_batches_behind_a_call(self, model, serve, wait_until):
        """Batches that were posted behind one that begins to wait go to another instance, and are not lost."""
        folder = model("caller", self.CALLER, more=TWO)
        gated = model("gated", GATED)
        server = serve()
        for _ in range(100):  # so fast a model may have many batches
            ask(server, "caller")
        (folder / "caller_0_0_calls").touch()
        with ThreadPoolExecutor(20) as clients:
            stopped = [clients.submit(server.infer, "caller", INPUT, request_id="stop")]
            wait_until(lambda: list(folder.glob("*_stopped")))
            stopped += [clients.submit(server.infer, "caller", INPUT, request_id="stop")]
            wait_until(lambda: len(list(folder.glob("*_stopped"))) == 2)
            behind = [send(server, "caller", number) for number in range(12)]
            server.settle()
            (folder / "caller_0_0_gate").touch()
            wait_until((gated / "begun").exists)
            (folder / "caller_0_1_gate").touch()
            assert [receive(each) for each in behind] == [[number] for number in range(12)]
            wait_until(lambda: sum(not each.done() for each in stopped) == 1)
            (gated / "gate").touch()
            for each in stopped:
                assert each.result().as_numpy("OUT").tolist() == [1, 2]


class TestInitialize:
    CALLS = """
class TritonPythonModel:
    def initialize(self, args):
        call = pb_utils.InferenceRequest(model_name="CALLEE", inputs=[pb_utils.Tensor("IN", np.array([20]))])
        response = call.exec()
        if response.has_error():
            raise RuntimeError(response.error().message())
        self.number = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()[0] + 1

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + self.number)])
                for request in requests]
"""

    @pytest.mark.parametrize("names", ["ab", "ba"])
    def test_calls(self, model, serve, names):
        """initialize may call a model that is loaded later."""
        caller, callee = names
        model(caller, self.CALLS.replace("CALLEE", callee))
        model(callee, NODE)
        assert ask(serve(), caller) == [22, 23]

    def test_chain(self, model, serve):
        """Even if that one waits for a third."""
        model("a", self.CALLS.replace("CALLEE", "b"))
        model("b", self.CALLS.replace("CALLEE", "c"))
        model("c", NODE)
        assert ask(serve(), "a") == [1 + 20 + 21 + 1, 2 + 20 + 21 + 1]

    def test_several_instances(self, model, serve):
        """Every instance of it."""
        model("a", self.CALLS.replace("CALLEE", "b"), more=TWO)
        model("b", NODE, more=TWO)
        assert ask(serve(), "a") == [22, 23]

    @pytest.mark.parametrize("callee", ["a", "b", "nobody"])
    def test_nobody_to_wait_for(self, model, serve, callee, wait_until):
        """A model that is not there, that fails, or that waits for this one is no reason to wait."""
        model("a", self.CALLS.replace("CALLEE", callee))
        model("b", self.CALLS.replace("CALLEE", "a"))
        model("good", NODE)
        server = serve("--exit-on-error=false", ready=False)
        wait_until(lambda: "| Model " in server.log)
        assert ask(server, "good") == [1, 2]
        for name in "ab":
            assert server.request("GET", f"/v2/models/{name}/ready").status != 200
        assert f"Model {callee} - Error when running inference: " in server.log

    def test_after_a_restart(self, model, serve, wait_until):
        """An instance that starts again calls again."""
        model("a", self.CALLS.replace("CALLEE", "b"))
        model("b", NODE)
        server = serve()
        old = server.stub("a_0")
        os.kill(old.pid, signal.SIGKILL)
        wait_until(lambda: server.stubs("a_0") not in ([], [old]))
        assert ask(server, "a") == [22, 23]


class TestFinalize:
    FINALIZES = (
        NODE
        + """
    def finalize(self):
        try:
            pb_utils.InferenceRequest(model_name="b", inputs=[pb_utils.Tensor("IN", np.array([1]))]).exec()
        except pb_utils.TritonModelException as exc:
            pb_utils.Logger.log_info(f"refused: {exc}")
"""
    )

    def test_refused(self, model, serve):
        """A call in finalize is refused."""
        model("a", self.FINALIZES)
        model("b", NODE)
        server = serve()
        assert ask(server, "a", "b") == [2, 3]
        server.stop()
        assert "a_0: refused: BLS is only supported during the 'execute' function." in server.log


class TestShutdown:
    # Calls as long as it can, in a thread that finalize waits for.
    BACKGROUND = """
class TritonPythonModel:
    def initialize(self, args):
        self.going_on = True
        self.ends = ""
        self.thread = threading.Thread(target=self.call)
        self.thread.start()

    def call(self):
        while self.going_on:
            call = pb_utils.InferenceRequest(model_name="callee", inputs=[pb_utils.Tensor("IN", np.array([1]))])
            try:
                call.exec()
            except pb_utils.TritonModelException as exc:
                pb_utils.Logger.log_info(f"ended: {exc}")
                return

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]

    def finalize(self):
        self.going_on = False
        self.thread.join()
"""

    def test_thread_that_calls(self, model, serve):
        """A thread of the model that calls others all the time does not prevent the stop."""
        for name in ("a", "z"):
            model(name, self.BACKGROUND)
        model("callee", NODE)
        server = serve()
        for name in ("a", "z"):
            for _ in range(20):
                assert ask(server, name) == [1, 2]
        server.stop()

    def test_call_under_way(self, model, serve, wait_until):
        """A server that stops lets a call end that a client waits for, and makes those that follow from it."""
        model("a", NODE)
        model("b", NODE)
        folder = model("gated", GATED)
        server = serve()
        with ThreadPoolExecutor() as clients:
            waiting = clients.submit(ask, server, "a", "b gated")
            wait_until((folder / "begun").exists)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "in-flight requests to complete" in server.log)
            (folder / "gate").touch()
            assert waiting.result() == [3, 4]
        assert server.wait_exit() == 0


class TestDeath:
    def test_of_the_callee(self, model, deploy, wait_until):
        """The caller reads that its callee has died, and calls the next one."""
        model("a", NODE)
        folder = model("gated", GATED)
        server = deploy()
        with ThreadPoolExecutor() as clients:
            waiting = clients.submit(outcome, server, "a", "gated")
            wait_until((folder / "begun").exists)
            os.kill(server.stub("gated_0").pid, signal.SIGKILL)
            assert waiting.result().startswith(
                "Stub process 'gated_0' is not healthy. It was lost while it ran this request: killed by SIGKILL"
            )
        (folder / "gate").touch()
        assert ask(server, "a", "gated") == [2, 3]

    def test_of_the_caller(self, model, deploy, wait_until):
        """The callee finishes the call, and its next calls succeed."""
        model("a", NODE)
        folder = model("gated", GATED)
        server = deploy()
        callee = server.stub("gated_0")
        with ThreadPoolExecutor() as clients:
            waiting = clients.submit(outcome, server, "a", "gated")
            wait_until((folder / "begun").exists)
            os.kill(server.stub("a_0").pid, signal.SIGKILL)
            assert waiting.result().startswith("Stub process 'a_0' is not healthy. It was lost while it ran this")
        (folder / "gate").touch()
        for _ in range(20):
            assert ask(server, "a", "gated") == [2, 3]
        assert server.stub("gated_0") == callee

    # Tells that its call is under way.
    STARTS = """
import asyncio

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    async def execute(self, requests):
        tensor = pb_utils.Tensor("IN", np.array([[3]]))
        call = pb_utils.InferenceRequest(model_name="gated", inputs=[tensor]).async_exec()
        open(self.folder + "/calls", "w").close()
        assert not (await call).has_error()
"""

    def test_of_the_caller_while_its_call_queues(self, model, serve, wait_until):
        """A queued call of a caller that has died is never executed."""
        caller = model("starts", self.STARTS)
        folder = model("gated", GATED, more="max_batch_size: 8 dynamic_batching { }")
        server = serve()
        with ThreadPoolExecutor() as clients:
            first = clients.submit(server.infer, "gated", {"IN": np.array([[1, 2]])})
            wait_until((folder / "begun").exists)
            waiting = clients.submit(server.refusal, "starts", {"IN": np.array([3])})
            wait_until((caller / "calls").exists)
            server.settle()
            os.kill(server.stub("starts_0").pid, signal.SIGKILL)
            assert "Stub process 'starts_0' is not healthy." in waiting.result()[1]
            (folder / "gate").touch()
            assert first.result().as_numpy("OUT").tolist() == [[1, 2]]
        assert server.infer("gated", {"IN": np.array([[1, 2]])}).as_numpy("OUT").tolist() == [[1, 2]]
        assert (folder / "begun").stat().st_size == 2

    def test_of_everybody(self, model, serve, wait_until):
        """All stubs of a chain die at once; everything goes on."""
        for name in "abc":
            model(name, NODE)
        folder = model("gated", GATED)
        server = serve()
        with ThreadPoolExecutor() as clients:
            waiting = clients.submit(outcome, server, "a", "b c gated")
            wait_until((folder / "begun").exists)
            for stub in server.stubs():
                os.kill(stub.pid, signal.SIGKILL)
            assert "is not healthy" in waiting.result()
        (folder / "gate").touch()
        assert ask(server, "a", "b c gated") == [4, 5]

    def test_under_load(self, model, serve):
        """Stubs that die again and again under load: every request is answered, rightly or with why not."""
        for name in "abc":
            model(name, NODE, more=TWO)
        server = serve()
        with ThreadPoolExecutor(8) as clients:
            found = [clients.submit(outcome, server, "a", "b c") for _ in range(400)]
            for number in range(4):
                found[40 * number].result()
                for stub in server.stubs()[number % 2 :: 2]:
                    with suppress(ProcessLookupError):  # one that was killed before, and has only now gone
                        os.kill(stub.pid, signal.SIGKILL)
            found = Counter(str(each.result()) for each in found)
        assert found.pop("[3, 4]") > 0
        assert all("is not healthy" in message for message in found), found
        assert ask(server, "a", "b c") == [3, 4]
