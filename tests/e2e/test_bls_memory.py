# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The memory that models share when they call one another: who may write to it, how long it stays, when it comes back.

Most tests are checks inside of a model: its execute runs the one that the request's id names.
"""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

DECOUPLED = "model_transaction_policy { decoupled: true }"
MIB = 1 << 20
# The request's parameter selects the action; the response describes the input.
CALLEE = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.kept = []

    def execute(self, requests):
        return [getattr(self, "do_" + json.loads(request.parameters()).get("act", "echo"))(request)
                for request in requests]

    def answer(self, array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])

    def do_echo(self, request):
        return self.answer(request.inputs()[0].as_numpy())

    def do_fill(self, request):
        count, number = request.inputs()[0].as_numpy()
        return self.answer(np.full(count, number))

    def do_sum(self, request):
        return self.answer(request.inputs()[0].as_numpy().sum(keepdims=True))

    def do_change(self, request):
        array = request.inputs()[0].as_numpy()
        array[:] = -1
        return self.answer(array[:1])

    def do_keep(self, request):
        self.kept.append(request.inputs()[0].as_numpy())
        return self.answer(np.zeros(1, np.int64))

    def do_kept(self, request):
        kept, self.kept = self.kept, []
        return self.answer(np.array([[each.min(), each.max()] for each in kept]).ravel())

    def do_wait(self, request):
        array = request.inputs()[0].as_numpy()
        open(self.folder + "/begun", "w").close()
        while not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        os.remove(self.folder + "/begun")
        os.remove(self.folder + "/gate")
        return self.answer(array.copy())

    def do_wait_and_keep(self, request):
        kept = [tensor.as_numpy() for tensor in request.inputs()]
        self.do_wait(request)
        self.kept += kept
        return self.answer(np.zeros(1, np.int64))

    def do_pass_on(self, request):
        made = pb_utils.Tensor("MORE", np.full(100 << 10, 77))
        call = pb_utils.InferenceRequest(
            model_name="callee", inputs=[made, *request.inputs()], parameters={"act": "wait_and_keep"}
        )
        return pb_utils.InferenceResponse(call.exec().output_tensors())

    def do_change_and_pass_on(self, request):
        array = request.inputs()[0].as_numpy()
        array[0] = 77
        call = pb_utils.InferenceRequest(model_name="other", inputs=request.inputs())
        return pb_utils.InferenceResponse(call.exec().output_tensors())
"""
MORE = 'input [ { name: "MORE" data_type: TYPE_INT64 dims: [ -1 ] optional: true } ]'
STREAMS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, size = request.inputs()[0].as_numpy()
            sender = request.get_response_sender()
            for number in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size, number))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
HELPERS = """
import asyncio, gc

SMALL, MEDIUM, LARGE = 10, 100 << 10, 2 << 20

def call(model, array, act="echo"):
    tensor = array if isinstance(array, pb_utils.Tensor) else pb_utils.Tensor("IN", array)
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], parameters={"act": act})

def output(response):
    assert not response.has_error(), response.error().message()
    return response.output_tensors()[0]

def run(model, array, act="echo"):
    return output(call(model, array, act).exec()).as_numpy()

def filled(count, number, model="callee"):
    return run(model, np.array([count, number]), "fill")

def renamed(tensor):
    return pb_utils.Tensor("IN", tensor.as_numpy())

def equal(found, expected):
    assert found == expected, (found, expected)

def is_all(array, number):
    assert (array == number).all(), (array.min(), array.max(), number)

def mappings():
    with open("/proc/self/maps") as maps:
        return len(list(maps))

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def anonymous_bytes(pid="self"):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

def used():
    gc.collect()
    return mappings(), descriptors(), anonymous_bytes()

def not_more(before, mappings=4, descriptors=0, megabytes=8):
    after = used()
    assert after[0] <= before[0] + mappings, (before, after)
    assert after[1] <= before[1] + descriptors, (before, after)
    assert after[2] <= before[2] + (megabytes << 20), (before, after)
"""
CHECKS = (
    HELPERS
    + '''
class TritonPythonModel:
    def initialize(self, args):
        self.repository = os.path.dirname(args["model_repository"])

    def execute(self, requests):
        (request,) = requests
        getattr(self, "check_" + request.request_id())(request.inputs()[0].as_numpy())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy()[:2])])]

    def open_gate(self):
        while not os.path.exists(self.repository + "/callee/begun"):
            time.sleep(0.001)
        open(self.repository + "/callee/gate", "w").close()

    # Writes to inputs and outputs.

    def check_callee_writes(self, own):
        """A callee may write to its input; the caller's array stays as it is."""
        for count in (SMALL, MEDIUM, LARGE):
            array = np.arange(count)
            for _ in range(2):
                equal(run("callee", array, "change").tolist(), [-1])
                equal(array.sum(), count * (count - 1) // 2)

    def check_callee_writes_to_what_was_passed_on(self, own):
        """So does the client's tensor, that the caller passes on."""
        for _ in range(2):
            equal(run("callee", own, "change").tolist(), [-1])
            is_all(own, 5)
        equal(run("other", own, "sum").tolist(), [5 * len(own)])

    def check_callee_writes_to_a_response(self, own):
        """And another model's response."""
        for count in (SMALL, MEDIUM, LARGE):
            array = filled(count, 3)
            equal(run("other", array, "change").tolist(), [-1])
            is_all(array, 3)

    def check_callee_writes_and_passes_on(self, own):
        """The callees of a callee see what the callee wrote."""
        for count in (SMALL, MEDIUM, LARGE):
            found = run("callee", np.full(count, 3), "change_and_pass_on")
            equal(found[0], 77)
            is_all(found[1:], 3)

    def check_caller_writes(self, own):
        """A caller may write to a response, and pass it on."""
        for count in (SMALL, MEDIUM, LARGE):
            array = filled(count, 3)
            array += 1
            equal(run("other", array, "sum").tolist(), [4 * count])
            is_all(array, 4)

    def check_caller_writes_to_its_input(self, own):
        """And to its own input."""
        own += 1
        equal(run("callee", own, "sum").tolist(), [6 * len(own)])
        own -= 1

    # How long it stays.

    def check_kept_responses(self, own):
        """Arrays of a response stay as they are for as long as the model has them."""
        kept = [(number, filled(count, number)) for number in range(8) for count in (SMALL, MEDIUM, LARGE)]
        for number in range(20):
            filled(LARGE, 1000 + number)
        for number, array in kept:
            is_all(array, number)

    def check_kept_parts(self, own):
        """So does what was made of them, and tensors whose array was not asked for before."""
        response = call("callee", np.array([LARGE, 3]), "fill").exec()
        tensor = output(response)
        other = output(call("callee", np.array([LARGE, 4]), "fill").exec())
        part = tensor.as_numpy()[100:200:2]
        del response, tensor
        gc.collect()
        for number in range(20):
            filled(LARGE, 1000 + number)
        is_all(part, 3)
        is_all(other.as_numpy(), 4)

    def check_passed_on(self, own):
        """A response may be the next model's input; it is not copied, and both see the same."""
        for count in (SMALL, MEDIUM, LARGE):
            tensor = output(call("callee", np.array([count, 3]), "fill").exec())
            found = output(call("other", renamed(tensor)).exec())
            again = run("callee", renamed(found), "sum")
            equal(again.tolist(), [3 * count])

    def check_passed_on_and_dropped(self, own):
        """An array that is passed on stays until the callee has read it, even if the caller has dropped it."""
        async def go():
            for count in (SMALL, MEDIUM, LARGE):
                pending = call("callee", filled(count, 3, "other"), "wait").async_exec()
                gc.collect()
                for number in range(20):
                    filled(count, 1000 + number, "other")
                self.open_gate()
                is_all(output(await pending).as_numpy(), 3)
        asyncio.run(go())

    def check_own_input_passed_on(self, own):
        """So does what the client sent."""
        async def go():
            pending = call("callee", own, "wait").async_exec()
            for number in range(20):
                filled(LARGE, 1000 + number, "other")
            self.open_gate()
            is_all(output(await pending).as_numpy(), 5)
        asyncio.run(go())

    def check_array_dropped_during_the_call(self, own):
        """And what the caller made."""
        async def go():
            for count in (SMALL, MEDIUM, LARGE):
                pending = call("callee", np.full(count, 3), "wait").async_exec()
                others = [call("other", np.full(count, 1000 + number)).async_exec() for number in range(20)]
                await asyncio.gather(*others)
                self.open_gate()
                is_all(output(await pending).as_numpy(), 3)
        asyncio.run(go())

    def check_callee_keeps(self, own):
        """A callee may keep its input, whatever its caller does."""
        for count in (SMALL, MEDIUM, LARGE):
            for number in range(5):
                run("callee", np.full(count, number), "keep")
            for number in range(20):
                run("callee", np.full(count, 1000 + number), "echo")
            equal(run("callee", np.zeros(1, np.int64), "kept").reshape(-1, 2).tolist(),
                  [[number, number] for number in range(5)])

    def check_callee_keeps_what_was_passed_on(self, own):
        """Even if it was another model's, or the client's."""
        for count in (SMALL, MEDIUM, LARGE):
            for number in range(5):
                run("callee", filled(count, number, "other"), "keep")
            run("callee", own, "keep")
            gc.collect()
            for number in range(20):
                filled(count, 1000 + number, "other")
            equal(run("callee", np.zeros(1, np.int64), "kept").reshape(-1, 2).tolist(),
                  [[number, number] for number in range(5)] + [[5, 5]])

    def check_iterators(self, own):
        """The responses of a stream are all there at its end."""
        tensor = pb_utils.Tensor("IN", np.array([30, MEDIUM]))
        request = pb_utils.InferenceRequest(model_name="streams", inputs=[tensor])
        arrays = [output(response).as_numpy() for response in request.exec(decoupled=True) if response.output_tensors()]
        equal(len(arrays), 30)
        for number, array in enumerate(arrays):
            is_all(array, number)

    # When it comes back.

    def check_nothing_is_left(self, own):
        """Thousands of calls of every size leave no mapping, no descriptor and no memory."""
        def calls(times):
            for number in range(times):
                for count in (SMALL, MEDIUM):
                    is_all(filled(count, number), number)
                    equal(run("callee", np.full(count, number), "sum").tolist(), [number * count])
        calls(50)
        before = used()
        calls(1000)
        not_more(before)

    def check_nothing_is_left_of_chains(self, own):
        """Nor do responses that are passed on."""
        def calls(times):
            for number in range(times):
                found = run("other", filled(MEDIUM, number))
                equal(run("callee", found, "sum").tolist(), [number * MEDIUM])
                equal(run("callee", own, "sum").tolist(), [5 * len(own)])
        calls(20)
        before = used()
        calls(300)
        not_more(before)

    def check_nothing_is_left_of_streams(self, own):
        """Nor do streams, read to the end or not."""
        def streams(times):
            for number in range(times):
                request = pb_utils.InferenceRequest(
                    model_name="streams", inputs=[pb_utils.Tensor("IN", np.array([8, MEDIUM if number % 2 else SMALL]))]
                )
                for index, response in enumerate(request.exec(decoupled=True)):
                    if index == number % 10:
                        break
                    for tensor in response.output_tensors():
                        is_all(tensor.as_numpy(), index)
        streams(20)
        before = used()
        streams(300)
        not_more(before)

    def check_nothing_is_left_of_coroutines(self, own):
        """Nor do calls that are made at once, dropped, or cancelled."""
        async def calls(times):
            for number in range(times):
                pending = [call("callee", np.full(MEDIUM, index)).async_exec() for index in range(10)]
                pending.pop()
                pending.pop().cancel()
                for index, response in enumerate(await asyncio.gather(*pending)):
                    is_all(output(response).as_numpy(), index)
        asyncio.run(calls(20))
        before = used()
        asyncio.run(calls(100))
        not_more(before)

    def check_nothing_is_left_of_errors(self, own):
        """Nor do calls that fail."""
        def calls(times):
            for number in range(times):
                array = np.full(MEDIUM, number)
                assert call("nobody", array).exec().has_error()
                assert call("callee", array.astype(np.float32)).exec().has_error()
                assert call("callee", array, "nonsense").exec().has_error()
        calls(20)
        before = used()
        calls(300)
        not_more(before)
'''
)


def names_of(code):
    """The checks in a model's code."""
    return re.findall(r"def check_(\w+)", code)


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of a model that calls, and of models that are called."""
    repository = tmp_path_factory.mktemp("memory")
    write_model(repository, "callee", CALLEE)
    write_model(repository, "other", CALLEE)
    write_model(repository, "streams", STREAMS, more=DECOUPLED)
    write_model(repository, "caller", CHECKS)
    with serving(repository) as server:
        yield server


def anonymous_bytes(process):
    """How much memory a process has for itself."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) << 10


# These make thousands of calls each time.
LONG = [name for name in names_of(CHECKS) if name.startswith("nothing_is_left")]


@pytest.mark.parametrize("check", [name for name in names_of(CHECKS) if name not in LONG])
def test_memory(server, require_memory, check):
    """See the check's own sentence. The client's tensor is large enough to be passed on where it lies."""
    require_memory(1 << 30)
    array = np.full(100 << 10, 5)
    for _ in range(3):
        assert server.infer("caller", {"IN": array}, request_id=check).as_numpy("OUT").tolist() == [5, 5]


@pytest.mark.parametrize("check", LONG)
def test_regions_do_not_grow(server, require_memory, check):
    """The regions of all models, the host, and the other stubs are as large after thousands of calls as before."""
    require_memory(1 << 30)
    processes = [server.process, *server.stubs()]
    array = np.full(100 << 10, 5)

    def twice():
        for _ in range(2):
            assert server.infer("caller", {"IN": array}, request_id=check).as_numpy("OUT").tolist() == [5, 5]

    twice()
    regions, memory = server.shared_bytes(), sum(map(anonymous_bytes, processes))
    twice()
    # Hundreds of MiB passed through them; how much of it at a time depends on timing.
    assert server.shared_bytes() <= regions + 64 * MIB
    assert sum(map(anonymous_bytes, processes)) <= memory + 16 * MIB


# Keeps a response of the model that the request's ID names, and later returns its contents.
KEEPER = (
    HELPERS
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        for request in requests:
            if request.request_id() == "drop":
                self.kept.clear()
            elif request.request_id() == "unload":
                pb_utils.unload_model("callee")
            elif request.request_id() == "load":
                pb_utils.load_model("callee")
            elif request.request_id() != "tell":
                self.kept.append(filled(*request.inputs()[0].as_numpy(), request.request_id()))
        found = np.array([[array.min(), array.max()] for array in self.kept], np.int64).ravel()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", found)]) for _ in requests]
"""
)


class TestAfterTheirEnd:
    @pytest.mark.parametrize("count", [10, 100 << 10])
    def test_of_the_callee(self, model, serve, wait_until, count):
        """Outputs of a stub that died stay as they were for their holder, and are freed when it releases them."""
        model("keeper", KEEPER)
        model("callee", CALLEE)
        server = serve()
        server.infer("keeper", {"IN": np.array([count, 1])}, request_id="callee")
        before = server.shared_bytes()
        for number in range(2, 5):
            old = server.stub("callee_0")
            os.kill(old.pid, signal.SIGKILL)
            wait_until(lambda old=old: server.stubs("callee_0") not in ([], [old]))
            server.infer("keeper", {"IN": np.array([count, number])}, request_id="callee")
        told = server.infer("keeper", {"IN": np.zeros(1, np.int64)}, request_id="tell").as_numpy("OUT")
        assert told.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
        server.infer("keeper", {"IN": np.zeros(1, np.int64)}, request_id="drop")
        server.infer("keeper", {"IN": np.array([count, 7])}, request_id="callee")
        wait_until(lambda: server.shared_bytes() <= before)

    @pytest.mark.parametrize("count", [10, 100 << 10])
    def test_of_the_callee_model(self, model, serve, wait_until, count):
        """Outputs of a model that is unloaded stay as they were, and are freed when their holder releases them."""
        model("keeper", KEEPER)
        model("callee", CALLEE)
        server = serve("--model-control-mode=explicit", "--load-model=keeper", "--load-model=callee")
        server.infer("keeper", {"IN": np.array([count, 1])}, request_id="callee")
        server.infer("keeper", {"IN": np.zeros(1, np.int64)}, request_id="drop")
        alone = server.shared_bytes()
        for number in range(1, 4):
            server.infer("keeper", {"IN": np.array([count, number])}, request_id="callee")
            server.infer("keeper", {"IN": np.zeros(1, np.int64)}, request_id="unload")
            wait_until(lambda: not server.stubs("callee_0"))
            server.infer("keeper", {"IN": np.zeros(1, np.int64)}, request_id="load")
        told = server.infer("keeper", {"IN": np.zeros(1, np.int64)}, request_id="tell").as_numpy("OUT")
        assert told.tolist() == [1, 1, 2, 2, 3, 3]
        server.infer("keeper", {"IN": np.zeros(1, np.int64)}, request_id="drop")
        wait_until(lambda: server.shared_bytes() <= alone)

    def test_of_the_caller(self, model, serve, wait_until):
        """Tensors of a stub that died stay as they were for the models that hold them, which free them later."""
        folder = model("callee", CALLEE, more=MORE)
        model("other", CALLEE)
        server = serve()
        array = np.full(100 << 10, 5)
        before = 0
        for _ in range(4):
            caller = server.stub("other_0")
            with ThreadPoolExecutor() as clients:
                # The callee has the caller's own memory, and the client's.
                lost = clients.submit(server.refusal, "other", {"IN": array}, parameters={"act": "pass_on"})
                wait_until((folder / "begun").exists)
                os.kill(caller.pid, signal.SIGKILL)
                assert "is not healthy" in lost.result()[1]
                wait_until(lambda caller=caller: server.stubs("other_0") not in ([], [caller]))
                (folder / "gate").touch()
            told = server.infer("callee", {"IN": array}, parameters={"act": "kept"}).as_numpy("OUT")
            assert told.tolist() == [77, 77, 5, 5]
            before = before or server.shared_bytes()
        wait_until(lambda: server.shared_bytes() <= before)
