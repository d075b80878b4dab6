# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models that do more than compute: threads, processes, files beside them, and a great deal of output."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

INPUT = {"IN": np.array([1, 2])}
# Calls the method that the request's id names, and answers with what it returns.
CALLS = """
import subprocess
from multiprocessing import get_context

class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.atleast_1d(np.int64(self.call(request))))])
                for request in requests]

    def call(self, request):
        return getattr(self, request.request_id().split(":")[0])(request.inputs()[0].as_numpy())

    def nothing(self, array):
        return array

    def run_a_command(self, array):
        return int(subprocess.run(["echo", "42"], capture_output=True, check=True).stdout)

    def terminate_a_command(self, array):
        with subprocess.Popen(["sleep", "1000"]) as command:
            command.terminate()
            try:
                return command.wait(30)
            except subprocess.TimeoutExpired:
                command.kill()
                return command.wait()

    def pool_of_processes(self, array):
        with get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2, -3])

    def fork_that_exits(self, array):
        # A child's exception or return is not an answer to the request.
        for leave in (lambda: sys.exit(0), lambda: None):
            pid = os.fork()
            if pid == 0:
                leave()
                return -1
            os.waitpid(pid, 0)
        return [os.getpid()]

    def fork(self, array):
        pid = os.fork()
        if pid == 0:
            logging.warning("logged by a child")
            os._exit(5)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def log_from_threads(self, array):
        def log():
            for number in range(200):
                logging.warning("from a thread")
        threads = [threading.Thread(target=log) for _ in range(8)]
        for thread in threads:
            thread.start()
        return array

    def print_much(self, array):
        print("y" * 200_000)
        print("x" * 5_000_000, end="", flush=True)
        logging.warning("z" * 5_000_000)
        print("\\x1b[31m\\0 \\u2028 \\udcff")
        return array

    def change_folder(self, array):
        os.chdir("/")
        return array

    def threads_at_start(self, array):
        return sum(not thread.name.startswith("pyruntime") for thread in threading.enumerate())

    def recurse(self, array):
        return self.recurse(array)

    def check_args(self, array):
        assert all(type(value) is str for value in self.args.values())
        assert os.path.basename(self.args["model_repository"]) == self.args["model_name"] == "calls"
        assert (self.args["model_version"], self.args["model_instance_kind"]) == ("1", "CPU")
        assert json.loads(self.args["model_config"])["name"] == "calls"
        return array

    def import_beside(self, array):
        import beside
        from importlib import import_module
        return [beside.NUMBER, import_module(".beside", __package__).NUMBER]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("models")
    folder = write_model(repository, "calls", CALLS)
    (folder / "1" / "beside.py").write_text("NUMBER = 7\n")
    with serving(repository) as server:
        yield server


def call(server, method):
    """The result of a method of the model."""
    return server.infer("calls", INPUT, request_id=method).as_numpy("OUT").tolist()


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("run_a_command", [42]),
        ("fork", [5]),
        ("threads_at_start", [1]),
        ("check_args", [1, 2]),
        ("import_beside", [7, 7]),
        ("change_folder", [1, 2]),
        ("log_from_threads", [1, 2]),
        ("print_much", [1, 2]),
    ],
)
def test_call(server, method, result):
    """The model does what any Python program may do, and goes on to serve."""
    stub = server.stub("calls_0")
    assert call(server, method) == result
    assert call(server, "nothing") == [1, 2]
    assert stub.is_alive()


def test_fork_that_exits(server):
    """A process that the model forked does not take over its requests."""
    stub = server.stub("calls_0")
    for _ in range(3):
        assert call(server, "fork_that_exits") == [stub.pid]


@pytest.mark.parametrize(("method", "result"), [("terminate_a_command", [-15]), ("pool_of_processes", [1, 2, 3])])
def test_processes_that_end_by_signal(model, serve, method, result):
    """A process that a model starts can be ended by SIGTERM, although the stub itself ignores this signal."""
    model("calls", CALLS)
    assert call(serve(), method) == result


def test_endless_recursion(server):
    """A model that recurses without end fails its request, in few words, and goes on."""
    status, message = server.refusal("calls", INPUT, request_id="recurse")
    assert status == 500
    assert "RecursionError: " in message
    assert len(message) < 4000
    assert call(server, "nothing") == [1, 2]


def test_log_is_by_the_line(server, wait_until):
    """However much a model prints, a line of the log is short enough to read, and nothing in it acts on a terminal."""
    call(server, "print_much")
    wait_until(lambda: "calls_0: " in server.log and "y" * 1000 in server.log)
    assert max(map(len, server.log.splitlines())) < 200_000


def test_long_request_id(server):
    """A request id of any length that the server takes comes back whole; one that it cannot handle is an error."""
    for length in (1000, 100_000, 1 << 20, 3 << 20):
        identifier = "nothing:" + "x" * length
        tensor = {"name": "IN", "shape": [1], "datatype": "INT64", "data": [1]}
        body = json.dumps({"id": identifier, "inputs": [tensor]})
        answer = server.request("POST", "/v2/models/calls/infer", body)
        if answer.status == 200:
            assert json.loads(answer.body)["id"] == identifier
        else:
            assert list(json.loads(answer.body)) == ["error"]
        assert call(server, "nothing") == [1, 2]


def test_many_at_once(server):
    """More clients than a model has instances are all answered, each with its own answer."""

    def ask(number):
        with_id = server.infer("calls", {"IN": np.array([number])}, request_id="nothing")
        return with_id.as_numpy("OUT").tolist() == [number]

    with ThreadPoolExecutor(32) as clients:
        assert all(clients.map(ask, range(500)))


def test_processes_that_a_model_leaves_behind(model, serve):
    """A process that a model leaves behind ends with its stub, which `serve` checks when the server stops."""
    code = """
class TritonPythonModel:
    def initialize(self, args):
        self.command = subprocess.Popen(["sleep", "1000"])
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
    model("starts", "import subprocess\n" + code)
    server = serve()
    assert server.infer("starts", INPUT).as_numpy("OUT").tolist() == [1, 2]
    titles = [process.title for process in server.family()]
    assert "sleep 1000" in titles
    server.stop()


def test_model_that_declares_nothing(model, serve):
    """A model without inputs and outputs is loaded, as in Triton, and the log says what is missing."""
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse() for request in requests]
    """
    model("nothing", code, config=None)
    model("something", code)
    server = serve()
    assert server.infer("nothing", {}).get_response()["outputs"] == []
    warning = (
        "model 'nothing' has no inputs and no outputs, so that clients cannot use it: declare them in config.pbtxt, "
        "or by add_input and add_output in auto_complete_config"
    )
    assert server.log.count("has no inputs and no outputs") == server.log.count(warning) == 1


def test_options_of_the_server_are_not_the_models(model, serve):
    """`sys.argv` is as in Triton, so that a model may use argparse or unittest."""
    model(
        "options",
        """
        import argparse, unittest

        options = argparse.ArgumentParser()
        options.add_argument("--size", type=int, default=3)

        class Test(unittest.TestCase):
            def test(self):
                pass

        class TritonPythonModel:
            def initialize(self, args):
                self.size = options.parse_args().size
                assert unittest.main(module=__name__, exit=False).result.wasSuccessful()

            def execute(self, requests):
                out = [pb_utils.Tensor("OUT", np.array([self.size]))]
                parameters = {"argv": json.dumps(sys.argv)}
                return [pb_utils.InferenceResponse(out, parameters=parameters) for request in requests]
        """,
    )
    result = serve().infer("options", {"IN": np.array([1])})
    assert result.as_numpy("OUT").tolist() == [3]
    assert result.get_response()["parameters"]["argv"] == '[""]'
