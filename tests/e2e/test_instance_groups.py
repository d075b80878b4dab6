# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instance groups that change while a model serves: what stays, what comes and what goes, with real processes."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .harness.server import to_input

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")
CLIENTS = 4
# How often something is done that must leave nothing behind. Pools of threads and connections may grow by some.
TURNS = 8
# Answers with the process and the name of its instance. It waits at a gate, and fails to start, where files say so;
# their names begin with dots, so that they are no change of the model.
WHO = """
class TritonPythonModel:
    def initialize(self, args):
        self.name, self.folder = args["model_instance_name"], args["model_repository"]
        if os.path.exists(self.folder + "/.fails"):
            raise ValueError("no such file")

    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy().flat[0] == -1:
            open(f"{self.folder}/.at_gate_{self.name}", "w").close()
            while not os.path.exists(self.folder + "/.go"):
                time.sleep(0.01)
        told = {"pid": os.getpid(), "instance": self.name}
        array = np.array([1], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], parameters=told) for _ in requests]

    def finalize(self):
        open(f"{self.folder}/.finalized_{self.name}", "w").close()
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
# Adds up what a sequence sends.
SUM = """
class TritonPythonModel:
    def initialize(self, args):
        self.name, self.sums = args["model_instance_name"], {}

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        id = request.correlation_id()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.sums[id] = 0
        self.sums[id] += int(request.inputs()[0].as_numpy()[0])
        told = {"sum": self.sums[id], "instance": self.name}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1], np.int32))], parameters=told)
"""
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 100000000 %s }\n"
IDENTITY = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""


def groups(*texts):
    return "instance_group [ " + ", ".join(f"{{ {text} }}" for text in texts) + " ]\n"


def load(server, name="m", **options):
    with closing(server.client()) as client:
        client.load_model(name, **options)


def told(server, value=1, **options):
    """The parameters of one response of `m`."""
    return server.infer("m", {"IN": np.array([value], np.int32)}, **options).get_response()["parameters"]


def instances(server):
    """The processes of the instances, by name."""
    stubs = server.stubs()
    by_name = {stub.title.rpartition(" ")[2]: stub.pid for stub in stubs}
    assert len(by_name) == len(stubs)
    return by_name


def leaving(server):
    """How many instances leave, by the metric."""
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    (line,) = [line for line in text.splitlines() if line.startswith("pyruntime_instances{") and "leaving" in line]
    return int(line.rpartition(" ")[2])


def index(server):
    (row,) = json.loads(server.request("POST", "/v2/repository/index", b"{}").body)
    return row


@contextmanager
def load_on(infer) -> Iterator[list[object]]:
    """Clients that infer all the time; yields their answers so far. A request that fails fails the test."""
    over, answers = threading.Event(), []

    def work():
        while not over.is_set():
            answers.append(infer())

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(work) for _ in range(CLIENTS)]
        try:
            yield answers
        finally:
            over.set()
        for client in clients:
            client.result()


class TestPython:
    def test_more_and_fewer(self, deploy, model, wait_until):
        """Under load, from one instance to three and back: no request fails, and the one that stays is left alone."""
        config = model("m", WHO, CONFIG, groups("count: 1")) / "config.pbtxt"
        server = deploy()
        first = instances(server)
        assert first.keys() == {"m_0_0"}
        with load_on(lambda: told(server)) as answers:
            config.write_text(CONFIG + groups("count: 3"))
            load(server)
            three = instances(server)
            wait_until(lambda: {answer["pid"] for answer in answers} == set(three.values()))
            config.write_text(CONFIG + groups("count: 1"))
            load(server)
            assert instances(server) == first
        assert three.keys() == {"m_0_0", "m_0_1", "m_0_2"}
        assert three["m_0_0"] == first["m_0_0"]
        assert {answer["instance"] for answer in answers} == set(three)
        # They were finalized, as at an unload.
        assert {path.name for path in config.parent.glob(".fin*")} == {".finalized_m_0_1", ".finalized_m_0_2"}
        with closing(server.client()) as client:
            statistics = client.get_inference_statistics("m")["model_stats"][0]
            assert statistics["inference_stats"]["success"]["count"] == len(answers)
            assert client.get_model_config("m")["instance_group"][0]["count"] == 1
        assert "failed" not in server.log
        assert "'m' version 1 has 2 new instances; 1 stay and 0 leave" in server.log

    def test_metrics(self, deploy, model, wait_until):
        """The metrics are of the instances that there are."""
        config = model("m", WHO, CONFIG) / "config.pbtxt"
        server = deploy()

        def counts():
            text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
            restarts = [line for line in text.splitlines() if line.startswith("pyruntime_stub_restarts_total{")]
            ready = [line for line in text.splitlines() if line.startswith("pyruntime_instances{") and "ready" in line]
            return len(restarts), ready[0].rpartition(" ")[2]

        for count in (3, 2):
            config.write_text(CONFIG + groups(f"count: {count}"))
            load(server)
            assert counts() == (count, str(count))

    def test_a_load_is_answered_when_the_instances_that_it_removes_have_finalized(self, deploy, model):
        config = model("m", WHO, CONFIG, groups("count: 4")) / "config.pbtxt"
        server = deploy()

        def finalized():
            return {path.name.removeprefix(".finalized_") for path in config.parent.glob(".finalized_*")}

        config.write_text(CONFIG + groups("count: 2"))
        load(server)
        assert finalized() == {"m_0_2", "m_0_3"}
        assert instances(server).keys() == {"m_0_0", "m_0_1"}
        # With other limits of rate the instances are others, too.
        before = instances(server)
        config.write_text(CONFIG + groups("count: 2 rate_limiter { priority: 2 }"))
        load(server)
        assert finalized() >= before.keys()
        assert not set(instances(server).values()) & set(before.values())

    def test_a_configuration_of_a_request(self, deploy, model):
        """A load request may bring the groups, too."""
        model("m", WHO, CONFIG)
        server = deploy()
        before = instances(server)
        with closing(server.client()) as client:
            config = client.get_model_config("m")
            config["instance_group"] = [{"name": "g", "count": 2, "kind": "KIND_CPU"}]
            client.load_model("m", config=json.dumps(config))
        assert instances(server) == {**before, "g_1": instances(server)["g_1"]}

    def test_what_runs(self, deploy, model, wait_until):
        """An instance that leaves answers what it has, and then ends; new requests do not wait for it."""
        folder = model("m", WHO, CONFIG, groups("count: 2"))
        server = deploy()
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(told, server, -1) for _ in range(2)]
            wait_until(lambda: len(list(folder.glob(".at_gate_*"))) == 2)
            others = "name: 'other' rate_limiter { priority: 2 }"
            (folder / "config.pbtxt").write_text(CONFIG + groups("count: 1", others))
            loading = pool.submit(load, server)
            # Its model is to be unloaded now, but it executes.
            wait_until(lambda: leaving(server) == 1)
            assert told(server)["instance"] == "other_0"
            assert not [each for each in (*running, loading) if each.done()]
            assert "m_0_1" in instances(server)
            (folder / ".go").touch()
            assert {each.result()["instance"] for each in running} == {"m_0_0", "m_0_1"}
            loading.result()
        assert instances(server).keys() == {"m_0_0", "other_0"}
        assert (folder / ".finalized_m_0_1").exists()

    def test_a_new_instance_that_fails(self, deploy, model):
        """All stays as it was, and the error and the index say why; the next load tries again."""
        folder = model("m", WHO, CONFIG)
        server = deploy()
        before = instances(server)
        (folder / "config.pbtxt").write_text(CONFIG + groups("count: 1 name: 'm'", "count: 2"))
        (folder / ".fails").touch()
        with load_on(lambda: told(server)), pytest.raises(InferenceServerException) as caught:
            load(server)
        assert "version 1 is at READY state: Internal: ValueError: no such file" in caught.value.message()
        assert instances(server) == before
        assert index(server)["state"] == "READY"
        assert "an older configuration serves" in index(server)["reason"]
        (folder / ".fails").unlink()
        load(server)
        assert instances(server).items() > before.items()
        assert index(server) == {"name": "m", "version": "1", "state": "READY"}

    def test_one_that_is_down(self, deploy, model, wait_until):
        """An instance that is down stays, if it is wanted, and goes with what it was if not."""
        folder = model("m", WHO, CONFIG, groups("count: 2"))
        server = deploy()
        (folder / ".fails").touch()
        os.kill(server.stub("m_0_1").pid, signal.SIGKILL)
        wait_until(lambda: "m_0_1: restarts in 15 s" in server.log)
        (folder / ".fails").unlink()
        (folder / "config.pbtxt").write_text(CONFIG + groups("count: 3"))
        load(server)
        assert instances(server).keys() == {"m_0_0", "m_0_2"}
        assert "m_0_1 is down" in index(server)["reason"]
        (folder / "config.pbtxt").write_text(CONFIG + groups("count: 1"))
        load(server)
        wait_until(lambda: instances(server).keys() == {"m_0_0"})
        assert index(server) == {"name": "m", "version": "1", "state": "READY"}
        assert told(server)["instance"] == "m_0_0"

    def test_another_change(self, deploy, model, wait_until):
        """Where anything else changes, everything is loaded again."""
        config = model("m", WHO, CONFIG) / "config.pbtxt"
        server = deploy()
        before = instances(server)
        config.write_text(CONFIG + groups("count: 2") + "version_policy { all { } }")
        load(server)
        assert instances(server).items() > before.items()
        config.write_text(CONFIG + groups("count: 1") + "max_batch_size: 4")
        load(server)
        wait_until(lambda: not instances(server).keys() & before.keys())

    def test_threads(self, deploy, model, wait_until):
        """A process of several threads is replaced if their number changes."""
        threads = 'parameters { key: "INSTANCE_MODE" value { string_value: "thread" } }\n'
        config = model("m", WHO, CONFIG, threads + groups("count: 2")) / "config.pbtxt"
        server = deploy()
        before = instances(server)["m_0_0"]
        with load_on(lambda: told(server)):
            config.write_text(CONFIG + threads + groups("count: 3"))
            load(server)
            assert told(server)["pid"] != before
            wait_until(lambda: before not in [stub.pid for stub in server.stubs()])
        after = instances(server)
        assert after.keys() == {"m_0_0"}
        config.write_text(CONFIG + threads + groups("count: 3", "count: 2"))
        load(server)
        assert instances(server).keys() == {"m_0_0", "m_1_0"}
        assert instances(server)["m_0_0"] == after["m_0_0"]

    def test_poll(self, serve, model, wait_until):
        """In poll mode an edit of the groups is enough; one that cannot be used changes nothing."""
        config = model("m", WHO, CONFIG) / "config.pbtxt"
        server = serve("--model-control-mode=poll", "--repository-poll-secs=1")
        before = instances(server)
        with load_on(lambda: told(server)):
            config.write_text(CONFIG + groups("count: 2"))
            wait_until(lambda: len(instances(server)) == 2)
            config.write_text(CONFIG + groups("kind: KIND_GPU"))
            wait_until(lambda: "older configuration" in index(server).get("reason", ""))
            config.write_text(CONFIG + "instance_group [")
            wait_until(lambda: "config.pbtxt" in index(server).get("reason", ""))
            assert len(instances(server)) == 2
            config.write_text(CONFIG + groups("count: 1"))
            wait_until(lambda: instances(server) == before)
        wait_until(lambda: "reason" not in index(server))


class TestSequences:
    @pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
    def test_drain(self, deploy, model, wait_until, strategy):
        """A sequence ends on the instance where it began; new ones go to those that stay."""
        config = model("m", SUM, CONFIG, SEQUENCES % strategy + groups("count: 2")) / "config.pbtxt"
        server = deploy()
        began = {id: told(server, id, sequence_id=id, sequence_start=True)["instance"] for id in (1, 2)}
        assert set(began.values()) == {"m_0_0", "m_0_1"}
        leaving = next(id for id, name in began.items() if name == "m_0_1")
        config.write_text(CONFIG + SEQUENCES % strategy + groups("count: 1"))
        load(server)
        for id in began:
            assert told(server, 10, sequence_id=id) == {"sum": id + 10, "instance": began[id]}
        assert instances(server).keys() == {"m_0_0", "m_0_1"}
        if strategy.startswith("oldest"):
            assert told(server, 5, sequence_id=3, sequence_start=True) == {"sum": 5, "instance": "m_0_0"}
        last = told(server, 100, sequence_id=leaving, sequence_end=True)
        assert last == {"sum": leaving + 110, "instance": "m_0_1"}
        wait_until(lambda: instances(server).keys() == {"m_0_0"})
        assert told(server, 100, sequence_id=3 - leaving)["sum"] == 3 - leaving + 110

    def test_one_of_the_same_name(self, deploy, model, wait_until):
        """An instance may begin while one of its name still leaves; each has its own sequences."""
        config = model("m", SUM, CONFIG, SEQUENCES % "" + groups("count: 2")) / "config.pbtxt"
        server = deploy()
        began = {told(server, id, sequence_id=id, sequence_start=True)["instance"]: id for id in (1, 2)}
        for count in (1, 2):
            config.write_text(CONFIG + SEQUENCES % "" + groups(f"count: {count}"))
            load(server)
        assert len(server.stubs("m_0_1")) == 2
        assert leaving(server) == 1
        assert told(server, 30, sequence_id=3, sequence_start=True) == {"sum": 30, "instance": "m_0_1"}
        old = began["m_0_1"]
        assert told(server, 10, sequence_id=old, sequence_end=True) == {"sum": old + 10, "instance": "m_0_1"}
        wait_until(lambda: len(server.stubs("m_0_1")) == 1)
        wait_until(lambda: leaving(server) == 0)
        assert told(server, 1, sequence_id=3) == {"sum": 31, "instance": "m_0_1"}

    def test_dies_while_it_leaves(self, deploy, model, wait_until):
        """Its sequences are lost, as with any other; it is not started again."""
        config = model("m", SUM, CONFIG, SEQUENCES % "" + groups("count: 2")) / "config.pbtxt"
        server = deploy()
        began = {told(server, id, sequence_id=id, sequence_start=True)["instance"]: id for id in (1, 2)}
        config.write_text(CONFIG + SEQUENCES % "" + groups("count: 1"))
        load(server)
        os.kill(server.stub("m_0_1").pid, signal.SIGKILL)
        wait_until(lambda: leaving(server) == 0)
        wait_until(lambda: instances(server).keys() == {"m_0_0"})
        status, message = server.refusal("m", {"IN": np.array([1], np.int32)}, sequence_id=began["m_0_1"])
        assert (status, "must specify the START flag" in message) == (400, True)
        assert told(server, 10, sequence_id=began["m_0_0"])["sum"] == began["m_0_0"] + 10
        assert index(server) == {"name": "m", "version": "1", "state": "READY"}

    def test_end(self, serve, model):
        """A sequence that goes on does not hold up the end of the server."""
        config = model("m", SUM, CONFIG, SEQUENCES % "" + groups("count: 2")) / "config.pbtxt"
        server = serve(*EXPLICIT, "--exit-timeout-secs=600")
        for id in (1, 2):
            told(server, id, sequence_id=id, sequence_start=True)
        config.write_text(CONFIG + SEQUENCES % "" + groups("count: 1"))
        load(server)
        assert leaving(server) == 1
        server.stop()

    def test_unload(self, deploy, model, wait_until):
        """A sequence that goes on does not keep its instance when the model is unloaded."""
        config = model("m", SUM, CONFIG, SEQUENCES % "" + groups("count: 2")) / "config.pbtxt"
        server = deploy()
        for id in (1, 2):
            told(server, id, sequence_id=id, sequence_start=True)
        config.write_text(CONFIG + SEQUENCES % "" + groups("count: 1"))
        load(server)
        with closing(server.client()) as client:
            client.unload_model("m")
        wait_until(lambda: index(server).get("reason") == "unloaded")
        assert instances(server) == {}


class TestNative:
    @pytest.fixture
    def backends(self, install_backends):
        return f"--backend-directory={install_backends('identity', 'lifecycle')}"

    def infer(self, server, model="m"):
        return server.infer(model, {"INPUT0": np.array([7], np.int32)}).as_numpy("OUTPUT0").tolist()

    def test_more_and_fewer(self, serve, model, backends, wait_until):
        """As with Python models: no request fails."""
        config = model("m", None, IDENTITY, groups("count: 1")) / "config.pbtxt"
        server = serve(backends, *EXPLICIT)
        assert threads_of(server) == ["m_0_0"]
        with load_on(lambda: self.infer(server)) as answers:
            for _ in range(3):
                config.write_text(IDENTITY + groups("count: 3"))
                load(server)
                assert threads_of(server) == ["m_0_0", "m_0_1", "m_0_2"]
                count = len(answers)
                wait_until(lambda count=count: len(answers) > count + 100)
                config.write_text(IDENTITY + groups("count: 1"))
                load(server)
                wait_until(lambda: threads_of(server) == ["m_0_0"])
        assert answers == [[7]] * len(answers)
        with closing(server.client()) as client:
            statistics = client.get_inference_statistics("m")["model_stats"][0]
            assert statistics["inference_stats"]["success"]["count"] == len(answers)
            assert client.get_model_config("m")["instance_group"][0]["count"] == 1

    def test_connections_that_last(self, serve, model, backends, wait_until):
        """Clients that repeat a request do not notice, though instances may read their connections."""
        config = model("m", None, IDENTITY) / "config.pbtxt"
        server = serve(backends, *EXPLICIT)
        with ExitStack() as stack:
            clients = [stack.enter_context(closing(server.client())) for _ in range(CLIENTS)]
            idle = list(clients)

            def infer():
                client = idle.pop()
                result = client.infer("m", [to_input("INPUT0", np.array([7], np.int32))])
                idle.append(client)
                return result.as_numpy("OUTPUT0").tolist()

            with load_on(infer) as answers:
                for turn in range(8):
                    count = len(answers)
                    wait_until(lambda count=count: len(answers) > count + 100)
                    config.write_text(IDENTITY + groups(f"count: {1 + turn % 2}"))
                    load(server)
                wait_until(lambda: threads_of(server) == ["m_0", "m_0_1"])
        assert answers == [[7]] * len(answers)

    def test_the_model_stays(self, serve, model, backends, wait_until):
        """Instances begin and end on the same model, which has their configuration; its memory is reported as it is."""
        text = IDENTITY.replace("identity", "lifecycle")
        config = model("m", None, text, groups("count: 2")) / "config.pbtxt"
        server = serve(backends, *EXPLICIT)

        def usage():
            statistics = json.loads(server.request("GET", "/v2/models/m/stats").body)["model_stats"][0]
            return {each["type"]: each["byte_size"] for each in statistics["memory_usage"]}

        before = usage()
        for count in (3, 1):
            config.write_text(text + groups(f"count: {count}"))
            load(server)
        wait_until(lambda: server.log.count("ModelInstanceFinalize m_0_") == 2)
        assert [server.log.count(f"{step} m") for step in ("ModelInitialize", "ModelFinalize")] == [1, 0]
        assert server.log.count("ModelInstanceInitialize m_0_") == 3
        wait_until(lambda: threads_of(server) == ["m_0_0"])
        assert usage()["CPU_PINNED"] < before["CPU_PINNED"]
        config.write_text(text + groups("count: 1", "kind: KIND_MODEL"))
        load(server)
        seen = [
            line.partition("Instance config: ")[2] for line in server.log.splitlines() if "Instance config: " in line
        ]
        # As in Triton an instance sees the configuration that serves while it begins.
        assert [group["count"] for group in json.loads(seen[-1])["instance_group"]] == [1]
        with closing(server.client()) as client:
            client.unload_model("m")
        wait_until(lambda: index(server).get("reason") == "unloaded")
        assert server.log.count("ModelInstanceFinalize m_") == 4

    def test_without_groups(self, serve, model, backends):
        """A configuration that sets no instances any more leaves their number to the backend, as at a load."""
        text = IDENTITY.replace("identity", "lifecycle")
        config = model("m", None, text, groups("count: 1")) / "config.pbtxt"
        server = serve(backends, *EXPLICIT)
        config.write_text(text)
        load(server)
        assert threads_of(server) == ["m_0_0", "m_1", "m_2"]
        assert "ModelInstanceFinalize" not in server.log
        with closing(server.client()) as client:
            (group,) = client.get_model_config("m")["instance_group"]
        assert (group["name"], group["kind"], group["count"]) == ("m", "KIND_CPU", 3)

    def test_a_new_instance_that_fails(self, serve, model, backends):
        """The backend refuses one: those that it has begun end again, and all stays as it was."""
        text = IDENTITY.replace("identity", "lifecycle")
        config = model("m", None, text, groups("count: 1")) / "config.pbtxt"
        server = serve(backends, *EXPLICIT)
        config.write_text(text + groups("count: 2", "name: 'fails in ModelInstanceInitialize' kind: KIND_MODEL"))
        with pytest.raises(InferenceServerException) as caught:
            load(server)
        assert "version 1 is at READY state: Unavailable: no ModelInstanceInitialize" in caught.value.message()
        assert threads_of(server) == ["m_0_0"]
        config.write_text(text + groups("count: 2"))
        load(server)
        assert threads_of(server) == ["m_0_0", "m_0_1"]

    def test_processes(self, serve, model, backends, wait_until):
        """Instances that are processes come and go as those of a Python model."""
        text = IDENTITY + 'parameters { key: "EXECUTION_MODE" value { string_value: "process" } }\n'
        config = model("m", None, text, groups("count: 1")) / "config.pbtxt"
        server = serve(backends, *EXPLICIT)
        before = instances(server)
        with load_on(lambda: self.infer(server)):
            config.write_text(text + groups("count: 2"))
            load(server)
            assert instances(server).keys() == {"m_0_0", "m_0_1"}
            config.write_text(text + groups("count: 1"))
            load(server)
            wait_until(lambda: instances(server) == before)


@pytest.mark.parametrize("kind", ["python", "native"])
def test_nothing_is_left(serve, model, install_backends, wait_until, kind):
    """However often instances come and go, the server holds no more descriptors and threads than before."""
    code, text = (WHO, CONFIG) if kind == "python" else (None, IDENTITY)
    config = model("m", code, text, groups("count: 1")) / "config.pbtxt"
    server = serve(f"--backend-directory={install_backends('identity')}", *EXPLICIT)
    folder = Path(f"/proc/{server.process.pid}")

    def held_after(turns):
        for _ in range(turns):
            for count in (3, 1):
                config.write_text(text + groups(f"count: {count}"))
                load(server)
            wait_until(lambda: leaving(server) == 0)
        return len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))

    before = held_after(3)
    after = held_after(TURNS)
    assert after[0] < before[0] + TURNS
    assert after[1] < before[1] + TURNS


def threads_of(server):
    """The names of the threads of a server that are those of instances of `m`."""
    return sorted(name for name in server.threads() if name.startswith("m_"))
