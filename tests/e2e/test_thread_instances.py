# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances that are threads of one process: they execute concurrently, share the module, and end together."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

THREADS = 'parameters { key: "INSTANCE_MODE" value { string_value: "thread" } } instance_group [ { count: 4 } ]'
DECOUPLED = "model_transaction_policy { decoupled: true }"
INPUT = {"IN": np.array([1, 2])}
# The request's ID selects the action.
MODEL = """
import asyncio

meeting = threading.Barrier(4)
MODULE = {"requests": 0}

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.tell("initialized", args["model_instance_name"])
        self.lock = threading.Lock()
        self.kept = []

    def tell(self, name, text="x"):
        with open(f"{self.folder}/{name}", "a") as file:
            file.write(text + "\\n")

    def execute(self, requests):
        return [getattr(self, "do_" + request.request_id().partition("-")[0])(request) for request in requests]

    def answer(self, array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.asarray(array))])

    def do_echo(self, request):
        return self.answer(request.inputs()[0].as_numpy())

    def do_meet(self, request):
        meeting.wait()
        return self.answer([os.getpid(), threading.get_ident()])

    def do_count(self, request):
        with self.lock:
            MODULE["requests"] += 1
            return self.answer([MODULE["requests"]])

    def do_raise(self, request):
        raise ValueError("exploded")

    def do_meet_and_die(self, request):
        self.tell("begun")
        if request.inputs()[0].as_numpy()[0]:
            while not os.path.exists(self.folder + "/gate"):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    def do_wait(self, request):
        self.tell("begun")
        while not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        return self.do_echo(request)

    def do_keep(self, request):
        self.kept.append(request.inputs()[0].as_numpy())
        return self.do_echo(request)

    def do_kept(self, request):
        kept, self.kept = self.kept, []
        return self.answer([[each.min(), each.max()] for each in kept])

    def do_send_later(self, request):
        array, sender = request.inputs()[0].as_numpy(), request.get_response_sender()
        threading.Thread(target=lambda: sender.send(self.answer(array), 1)).start()

    def do_call(self, request):
        response = pb_utils.InferenceRequest(
            model_name="other", request_id="echo", inputs=request.inputs()
        ).exec()
        assert not response.has_error(), response.error().message()
        return pb_utils.InferenceResponse(response.output_tensors())

    def do_call_itself(self, request):
        array = request.inputs()[0].as_numpy()
        if not array[0]:
            return self.answer(array)
        tensor = pb_utils.Tensor("IN", array - 1)
        response = pb_utils.InferenceRequest(model_name="m", request_id="call_itself", inputs=[tensor]).exec()
        return pb_utils.InferenceResponse(response.output_tensors(), error=response.error())

    def do_gather(self, request):
        async def calls():
            requests = [
                pb_utils.InferenceRequest(model_name="other", request_id="echo", inputs=request.inputs())
                for _ in range(10)
            ]
            for response in await asyncio.gather(*(each.async_exec() for each in requests)):
                assert not response.has_error(), response.error().message()
            return response
        return pb_utils.InferenceResponse(asyncio.run(calls()).output_tensors())

    def finalize(self):
        self.tell("finalized")
"""
COROUTINES = """
import asyncio

meeting = threading.Barrier(4)

class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0)
        meeting.wait()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
STREAMS = """
meeting = threading.Barrier(4)

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            meeting.wait()
            sender = request.get_response_sender()
            for number in request.inputs()[0].as_numpy():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of models whose instances are threads."""
    repository = tmp_path_factory.mktemp("threads")
    write_model(repository, "m", MODEL, more=THREADS)
    write_model(repository, "other", MODEL, more=THREADS)
    write_model(repository, "coroutines", COROUTINES, more=THREADS)
    write_model(repository, "streams", STREAMS, more=THREADS + DECOUPLED)
    with serving(repository) as server:
        server.folder = repository / "m"
        yield server


def ask(server, act, numbers=(1, 2), model="m"):
    """The output of a request that says what to do."""
    return server.infer(model, {"IN": np.array(numbers)}, request_id=act).as_numpy("OUT").tolist()


class TestExecute:
    def test_at_once(self, server):
        """As many requests as there are instances are executed at a time, in one process."""
        with ThreadPoolExecutor(4) as clients:
            for _ in range(20):
                found = [each.result() for each in [clients.submit(ask, server, "meet") for _ in range(4)]]
                assert {pid for pid, _ in found} == {server.stub("m_0_0").pid}
                assert len({thread for _, thread in found}) == 4
        assert [stub.title for stub in server.stubs() if " m_" in stub.title] == ["triton_python_backend_stub m_0_0"]

    def test_what_the_module_has(self, server):
        """Instances share the variables of the module."""
        before = ask(server, "count")[0]
        with ThreadPoolExecutor(8) as clients:
            found = [clients.submit(ask, server, "count") for _ in range(200)]
            assert sorted(each.result()[0] for each in found) == list(range(before + 1, before + 201))

    def test_under_load(self, server):
        """Every request gets its own answer."""
        with ThreadPoolExecutor(12) as clients:
            found = clients.map(lambda number: ask(server, "echo", [number, -number]), range(600))
            assert list(found) == [[number, -number] for number in range(600)]

    def test_coroutines(self, server):
        """async def execute: each thread has a loop of its own."""
        with ThreadPoolExecutor(4) as clients:
            for _ in range(5):
                found = [clients.submit(ask, server, "", [number], "coroutines") for number in range(4)]
                assert [each.result() for each in found] == [[0], [1], [2], [3]]

    def test_streams(self, server):
        """Decoupled models, too."""
        with ThreadPoolExecutor(4) as clients:
            numbers = list(range(100))
            found = [clients.submit(server.stream, "streams", IN=numbers) for _ in range(4)]
            for each in found:
                assert [event["OUT"] for event in each.result()] == numbers

    def test_what_one_raises(self, server):
        """An exception of execute fails the request of its own thread."""
        with ThreadPoolExecutor(8) as clients:
            good = [clients.submit(ask, server, "echo", [number]) for number in range(100)]
            bad = [clients.submit(server.refusal, "m", INPUT, request_id="raise") for _ in range(20)]
            assert [each.result() for each in good] == [[number] for number in range(100)]
            for each in bad:
                status, message = each.result()
                assert status == 500
                assert message.startswith(
                    "Failed to process the request(s) for model 'm_0_0', message: ValueError: exploded"
                )

    def test_one_that_waits(self, server, wait_until):
        """A thread that waits stops no other."""
        (server.folder / "begun").unlink(missing_ok=True)
        with ThreadPoolExecutor() as clients:
            waiting = [clients.submit(ask, server, "wait") for _ in range(3)]
            wait_until(lambda: (server.folder / "begun").exists() and (server.folder / "begun").stat().st_size == 6)
            for number in range(50):
                assert ask(server, "echo", [number]) == [number]
            (server.folder / "gate").touch()
            assert [each.result() for each in waiting] == [[1, 2]] * 3
        (server.folder / "gate").unlink()

    def test_kept_inputs(self, server):
        """Inputs that a thread keeps do not change."""
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(lambda number: ask(server, "keep", [number] * 1000), range(20)))
            list(clients.map(lambda number: ask(server, "echo", [number] * 1000), range(100, 200)))
        assert sorted(ask(server, "kept")) == [[number, number] for number in range(20)]

    def test_senders(self, server):
        """Senders work as usual."""
        with ThreadPoolExecutor(8) as clients:
            found = clients.map(lambda number: ask(server, "send_later", [number]), range(100))
            assert list(found) == [[number] for number in range(100)]


class TestCalls:
    @pytest.mark.parametrize("act", ["call", "gather"])
    def test_other_models(self, server, act):
        """All threads may call other models at once."""
        with ThreadPoolExecutor(8) as clients:
            found = clients.map(lambda number: ask(server, act, [number]), range(100))
            assert list(found) == [[number] for number in range(100)]

    def test_itself(self, server):
        """As long as there are threads left, also the own one."""
        assert ask(server, "call_itself", [3]) == [0]
        status, message = server.refusal("m", {"IN": np.array([4])}, request_id="call_itself")
        assert status == 503
        assert message.startswith("Model m - Error when running inference: the call would wait for ever, ")

    def test_itself_at_once(self, server):
        """Every request is answered, in any order."""

        def outcome(number):
            try:
                return ask(server, "call_itself", [number])
            except InferenceServerException as exc:
                return exc.message()

        refused = "Model m - Error when running inference: the call would wait for ever, "
        with ThreadPoolExecutor(8) as clients:
            found = list(clients.map(outcome, [1, 2, 3] * 30))
        assert all(each == [0] or each.startswith(refused) for each in found)
        assert [0] in found


class TestLife:
    def test_begins_and_ends_once(self, model, serve):
        """initialize and finalize are called once, by the name of the first instance."""
        folder = model("m", MODEL, more=THREADS)
        server = serve()
        assert ask(server, "echo") == [1, 2]
        server.stop()
        assert (folder / "initialized").read_text() == "m_0_0\n"
        assert (folder / "finalized").read_text() == "x\n"

    def test_stops_when_all_have_ended(self, model, serve, wait_until):
        """finalize comes after all executions."""
        folder = model("m", MODEL, more=THREADS)
        server = serve()
        with ThreadPoolExecutor() as clients:
            waiting = [clients.submit(ask, server, "wait") for _ in range(4)]
            wait_until(lambda: (folder / "begun").exists() and (folder / "begun").stat().st_size == 8)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "in-flight requests to complete" in server.log)
            assert not (folder / "finalized").exists()
            (folder / "gate").touch()
            assert [each.result() for each in waiting] == [[1, 2]] * 4
        assert server.wait_exit() == 0
        assert (folder / "finalized").read_text() == "x\n"

    def test_dies_at_once(self, model, serve, wait_until):
        """A crash takes all that is executed; the process starts again, and all its threads."""
        folder = model("m", MODEL, more=THREADS)
        server = serve()
        with ThreadPoolExecutor(8) as clients:
            lost = [
                clients.submit(server.refusal, "m", {"IN": np.array([number])}, request_id="meet_and_die")
                for number in (0, 0, 0, 1)
            ]
            wait_until(lambda: (folder / "begun").exists() and (folder / "begun").stat().st_size == 8)
            queued = [clients.submit(ask, server, "echo", [number]) for number in range(4)]
            (folder / "gate").touch()
            for each in lost:
                status, message = each.result()
                assert status == 500
                assert re.match(r"Stub process 'm_0_0' is not healthy\. It was lost while it ran this request", message)
            assert [each.result() for each in queued] == [[number] for number in range(4)]
            found = [each.result() for each in [clients.submit(ask, server, "meet") for _ in range(4)]]
            assert len({thread for _, thread in found}) == 4
        assert (folder / "initialized").read_text() == "m_0_0\n" * 2

    def test_killed_while_idle(self, model, serve, wait_until):
        """Clients do not notice the death of an idle stub."""
        model("m", MODEL, more=THREADS)
        server = serve()
        old = server.stub("m_0_0")
        os.kill(old.pid, signal.SIGKILL)
        wait_until(lambda: server.stubs("m_0_0") not in ([], [old]))
        assert ask(server, "echo") == [1, 2]

    def test_groups(self, model, serve):
        """Each group of instances has a process."""
        model(
            "m", MODEL, more='parameters { key: "INSTANCE_MODE" value { string_value: "thread" } } '
            'instance_group [ { name: "a" count: 2 }, { name: "b" count: 3 } ]',
        )  # fmt: skip
        server = serve()
        assert sorted(stub.title.split()[-1] for stub in server.stubs()) == ["a_0", "b_0"]
        assert ask(server, "echo") == [1, 2]

    def test_unknown_mode(self, model, serve, wait_until):
        """A mode that is not there is no reason to guess."""
        model("m", MODEL, more='parameters { key: "INSTANCE_MODE" value { string_value: "fibre" } }')
        server = serve("--exit-on-error=false", ready=False)
        wait_until(lambda: "| Model " in server.log)
        assert "model 'm' has the parameter INSTANCE_MODE 'fibre', which must be 'process' or 'thread'" in server.log
