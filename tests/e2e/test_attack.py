# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models with forbidden or unexpected actions: calls that outlive their batch, callers that die, forks."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

ONE = {"IN": np.array([1])}
DECOUPLED = "model_transaction_policy { decoupled: true }"
# Answers when there is a file `gate` in its folder, and tells that it has begun.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        with open(self.folder + "/begun", "a") as file:
            file.write("x")
        while not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy().copy())])
                for request in requests]
"""
# Loads and unloads models.
CONTROL = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            parameters = json.loads(request.parameters())
            if "unload" in parameters:
                pb_utils.unload_model(parameters["unload"])
            if "load" in parameters:
                pb_utils.load_model(parameters["load"])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]) for request in requests]
"""
# Calls the gated model in a thread that it does not wait for, once; then it answers at once.
LATER = """
class TritonPythonModel:
    called = False

    def execute(self, requests):
        if not self.called:
            self.called = True
            array = requests[0].inputs()[0].as_numpy().copy()
            call = pb_utils.InferenceRequest(model_name="gated", inputs=[pb_utils.Tensor("IN", array)])
            threading.Thread(target=call.exec).start()
            folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
            while not os.path.exists(folder + "/gated/begun"):
                time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]) for request in requests]
"""


class TestCallsThatOutliveTheirBatch:
    def test_do_not_hold_up_the_next(self, model, serve, tmp_path):
        """Work that no client waits for any more does not keep the model from its requests."""
        model("gated", GATED)
        model("later", LATER)
        server = serve()
        server.infer("later", ONE)
        server.infer("later", ONE)
        (tmp_path / "gated" / "gate").touch()

    def test_do_not_hold_up_the_end(self, model, serve, wait_until, tmp_path):
        """A stub that has said its last word ends, though a thread of the model waits for an answer."""
        model("gated", GATED)
        model("later", LATER)
        model("control", CONTROL)
        server = serve("--model-control-mode=explicit", "--load-model=*")
        gated = server.stub("gated_0")
        server.infer("later", ONE)
        server.infer("control", ONE, parameters={"unload": "later"})
        wait_until(lambda: not server.stubs("later_0"))
        (tmp_path / "gated" / "gate").touch()
        server.infer("gated", ONE)
        assert server.stub("gated_0") == gated


class TestMemory:
    def test_of_a_caller_that_died_is_still_read(self, model, serve):
        """The inputs of a call that a model keeps do not change when the caller dies and others use the memory."""
        model(
            "keeper",
            """
            class TritonPythonModel:
                kept = None

                def execute(self, requests):
                    (request,) = requests
                    if self.kept is None:
                        self.kept = request.inputs()[0].as_numpy()
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.unique(self.kept))])]
            """,
        )
        model(
            "caller",
            """
            class TritonPythonModel:
                def execute(self, requests):
                    if "die" in requests[0].parameters():
                        pb_utils.InferenceRequest(model_name="keeper", inputs=requests[0].inputs()).exec()
                        os.kill(os.getpid(), signal.SIGKILL)
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]) for _ in requests]
            """,
        )
        server = serve()
        size = 50_000
        server.refusal("caller", {"IN": np.full(size, 1)}, parameters={"die": True})
        for number in range(2, 6):
            server.infer("caller", {"IN": np.full(size, number)})
        assert server.infer("keeper", ONE).as_numpy("OUT").tolist() == [1]

    def test_is_not_written_by_a_fork(self, model, serve, wait_until):
        """A process that the model forked cannot make calls: it would write where its parent does."""
        model("gated", GATED)
        model(
            "forks",
            """
            class TritonPythonModel:
                def execute(self, requests):
                    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + "/gated"
                    pid = os.fork()
                    if not pid:
                        while not os.path.exists(folder + "/begun"):
                            time.sleep(0.001)
                        try:
                            self.call(7)
                        except pb_utils.TritonModelException as exc:
                            print(exc, flush=True)
                        open(folder + "/gate", "w").close()
                        os._exit(0)
                    response = self.call(1)
                    os.waitpid(pid, 0)
                    output = pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.unique(output))])]

                def call(self, number):
                    tensor = pb_utils.Tensor("IN", np.full(50_000, number))
                    return pb_utils.InferenceRequest(model_name="gated", inputs=[tensor]).exec()
            """,
        )
        server = serve()
        assert server.infer("forks", ONE).as_numpy("OUT").tolist() == [1]
        wait_until(lambda: "BLS is not possible in a process that the model has forked." in server.log)

    def test_that_nobody_read_is_forgotten(self, model, serve):
        """A callee that looks at no input does not keep the memory of callers that are gone."""
        model(
            "ignores",
            """
            class TritonPythonModel:
                def execute(self, requests):
                    with open("/proc/self/maps") as maps:
                        regions = sum("/dev/shm/" in line or "/memfd:" in line for line in maps)
                    if "look" in requests[0].parameters():
                        requests[0].inputs()[0].as_numpy()
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([regions]))])]
            """,
        )
        model(
            "caller",
            """
            class TritonPythonModel:
                def execute(self, requests):
                    tensor = pb_utils.Tensor("IN", np.zeros(50_000, np.int64))
                    look = json.loads(requests[0].parameters())
                    call = pb_utils.InferenceRequest(model_name="ignores", inputs=[tensor], parameters=look)
                    return [pb_utils.InferenceResponse(call.exec().output_tensors())]
            """,
        )
        model("control", CONTROL)
        server = serve("--model-control-mode=explicit", "--load-model=*")

        def regions(**parameters):
            return server.infer("caller", ONE, parameters=parameters).as_numpy("OUT").item()

        before = regions()
        for _ in range(5):
            regions()
            server.infer("control", ONE, parameters={"unload": "caller"})
            server.infer("control", ONE, parameters={"load": "caller"})
        regions(look=True)
        assert regions() <= before + 1


class TestSenders:
    @pytest.mark.parametrize("end", ["sender.send(flags=1)", "raise ValueError('no')"])
    def test_that_are_ended_by_another_thread(self, model, serve, wait_until, end):
        """A sender that another thread has ended sends no more: the stub lives, and the thread gets an error."""
        model(
            "streams",
            """
            class TritonPythonModel:
                def execute(self, requests):
                    sender = requests[0].get_response_sender()
                    begun = threading.Event()

                    def send():
                        try:
                            while True:
                                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]))
                                begun.set()
                        except pb_utils.TritonModelException as exc:
                            print(exc, flush=True)

                    threading.Thread(target=send, daemon=True).start()
                    begun.wait()
                    END
            """.replace("END", end),
            more=DECOUPLED,
        )
        server = serve()
        stub = server.stub("streams_0")
        for _ in range(20):
            server.stream("streams", IN=[1])
        wait_until(lambda: server.log.count("Response sender has been closed") == 20)
        assert server.stub("streams_0") == stub


class TestManyCalls:
    def test_more_than_can_be_under_way(self, model, serve):
        """Those that are too many fail; the model lives."""
        model("gated", GATED)
        model(
            "caller",
            """
            import asyncio

            class TritonPythonModel:
                async def execute(self, requests):
                    gate = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + "/gated/gate"
                    calls = [
                        pb_utils.InferenceRequest(
                            model_name="gated", inputs=[pb_utils.Tensor("IN", np.array([number]))]
                        ).async_exec()
                        for number in range(10_050)
                    ]
                    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                    open(gate, "w").close()
                    failed = sum(response.has_error() for response in await asyncio.gather(*calls))
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([failed]))])]
            """,
        )
        server = serve()
        assert server.infer("caller", ONE).as_numpy("OUT").tolist() == [50]


class TestDeadlocks:
    def test_of_all_threads_of_an_instance(self, model, serve):
        """An instance of several threads waits for itself when all of them do: the last call is refused."""
        model(
            "threads",
            """
            class TritonPythonModel:
                def initialize(self, args):
                    self.both = threading.Barrier(2)

                def execute(self, requests):
                    if "call" not in requests[0].parameters():
                        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))])]
                    self.both.wait()
                    tensor = pb_utils.Tensor("IN", np.array([1]))
                    response = pb_utils.InferenceRequest(model_name="threads", inputs=[tensor]).exec()
                    return [response]
            """,
            more='instance_group [{ count: 2 }] parameters { key: "INSTANCE_MODE" value { string_value: "thread" } }',
        )
        server = serve("--exit-timeout-secs=1")

        def ask(_):
            with suppress(InferenceServerException):
                return server.infer("threads", ONE, parameters={"call": True}).as_numpy("OUT").tolist()
            return "refused"

        with ThreadPoolExecutor(2) as pool:
            assert sorted(map(str, pool.map(ask, range(2)))) == ["[1]", "refused"]
