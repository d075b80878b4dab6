# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that a model starts find what the model found, whichever Python it has and however they are started."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

# The answer is the pool's, by functions of model.py; the request's ID is the start method.
POOLS = """
import multiprocessing
import helper


def double(number):
    return helper.double(int(number))


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        numbers = request.inputs()[0].as_numpy()
        method = request.request_id()
        if method == "joblib":
            import joblib

            doubled = joblib.Parallel(2)(joblib.delayed(double)(number) for number in numbers)
        else:
            with multiprocessing.get_context(method).Pool(2) as pool:
                doubled = pool.map(double, numbers)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(doubled))])
"""
HELPER = """
import c_python_backend_utils
import triton_python_backend_utils as pb_utils

pb_utils.InferenceResponse, c_python_backend_utils.InferenceResponseSender


def double(number):
    return 2 * number
"""
# A pool whose processes die of each task: its answer never comes, and it starts others for them without an end.
LOST = """
import multiprocessing


class Task:
    def __reduce__(self):
        return os._exit, (1,)


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        pool = multiprocessing.get_context("forkserver").Pool(2)
        with open(self.folder + "/waits", "w"):
            pass
        pool.map(len, [Task()])
"""


@pytest.fixture
def pools(model, deploy, python):
    folder = model("m", POOLS, more=python)
    (folder / "1" / "helper.py").write_text(HELPER)
    return deploy()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "joblib"])
def test_functions_of_the_model_run_in_its_processes(pools, method):
    """They import model.py, what it imports, and the modules of Triton's that it imports."""
    result = pools.infer("m", {"IN": np.arange(5)}, request_id=method)
    assert result.as_numpy("OUT").tolist() == [0, 2, 4, 6, 8]


def test_an_unload_does_not_wait_for_a_pool_that_never_answers(model, serve, python, wait_until):
    """After the time that requests have to end, the model is killed, and so are its processes."""
    folder = model("m", LOST, more=python)
    server = serve("--model-control-mode=explicit", "--load-model=m", "--exit-timeout-secs=1")
    with ThreadPoolExecutor() as clients:
        request = clients.submit(server.refusal, "m", {"IN": np.arange(5)})
        wait_until((folder / "waits").exists)
        before = server.family()
        assert server.request("POST", "/v2/repository/models/m/unload", "{}").status == 200
        assert request.result()[0] == 500
    wait_until(lambda: server.stubs() == [])
    wait_until(lambda: b'"unloaded"' in server.request("POST", "/v2/repository/index", "{}").body)
    launcher = [each for each in server.family() if each.title == "pyruntime launcher"]
    wait_until(lambda: server.family() == launcher)
    assert len(before) > len(launcher)


# What a child does after a fork in `method`; its parent notes the status.
FORKS = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.note("initialize", lambda: sys.exit(7))

    def execute(self, requests):
        self.note("exits", lambda: sys.exit(7))
        self.note("nothing", lambda: sys.exit())
        self.note("text", lambda: sys.exit("no more"))
        self.note("fails", lambda: [][0])
        if not os.fork():
            return []
        self.note_status("returns")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]

    def finalize(self):
        self.note("finalize", lambda: sys.exit(8))

    def note(self, name, end):
        if not os.fork():
            end()
        self.note_status(name)

    def note_status(self, name):
        with open(self.folder + "/statuses", "a") as file:
            file.write(f"{name} {os.waitstatus_to_exitcode(os.wait()[1])}\\n")
"""
STATUSES = ["initialize 7", "exits 7", "nothing 0", "text 1", "fails 1", "returns 0", "finalize 8"]


def test_a_child_that_is_forked_has_the_status_that_it_exits_with(model, serve, python):
    """Only its parent answers the request, in each kind of stub."""
    folder = model("m", FORKS, more=python)
    server = serve()
    assert server.infer("m", {"IN": np.arange(5)}).as_numpy("OUT").tolist() == [0, 1, 2, 3, 4]
    server.stop()
    assert (folder / "statuses").read_text().splitlines() == STATUSES
    assert "m_0: no more" in server.log
    assert "m_0: IndexError: list index out of range" in server.log


# A file beside model.py that has the name of a package of the server's.
SHADOWING = """
import msgpack


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([msgpack.NUMBER]))]) for _ in requests]
"""


SHADOWING_CHILD = """
import multiprocessing
import msgpack


def number(_):
    return msgpack.NUMBER


class TritonPythonModel:
    def execute(self, requests):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.map(number, [0])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(found))]) for _ in requests]
"""


@pytest.mark.parametrize("code", [SHADOWING, SHADOWING_CHILD], ids=["in the model", "in a process of the model"])
def test_a_module_of_the_model_may_have_the_name_of_a_package_of_the_server(model, deploy, python, code):
    folder = model("m", code, more=python)
    (folder / "1" / "msgpack.py").write_text("NUMBER = 7\n")
    assert deploy().infer("m", {"IN": np.arange(5)}).as_numpy("OUT").tolist() == [7]
