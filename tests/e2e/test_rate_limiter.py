# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances that share resources, with real processes: who runs together, in which order, and what gives back."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .harness.server import to_input

LIMITED = "--rate-limit=execution_count"
DEPLOY_OPTIONS = (LIMITED,)
# Writes down when an execution begins and ends. Requests wait at a gate while there is a file for that.
RECORDS = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.root = args["model_repository"] + "/.."

    def execute(self, requests):
        self.record("begin")
        while os.path.exists(self.root + "/.closed_" + self.name):
            time.sleep(0.001)
        self.act(requests)
        self.record("end")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]

    def act(self, requests):
        pass

    def record(self, what):
        with open(self.root + "/.record", "a") as file:
            file.write(f"{self.name} {what}\\n")
"""
ONE = np.array([1], np.int64)


def group(resources="", more="", priority=0):
    needs = " ".join(f"resources {{ {each} }}" for each in resources.split(",") if each)
    return f"instance_group [ {{ {more} rate_limiter {{ {needs} priority: {priority} }} }} ]\n"


R1 = "name: 'R' count: 1"


def shared(model, *names, code=RECORDS, **of):
    """Models that share one resource, so that only one of them runs."""
    for name in names:
        model(name, code, more=group(R1, **of))


def record(tmp_path):
    path = tmp_path / ".record"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def together_max(steps):
    """How many executions there were together at most."""
    running = most = 0
    for _, what in steps:
        running += 1 if what == "begin" else -1
        most = max(most, running)
    return most


@contextmanager
def closed(tmp_path, *names):
    """The gates of these models are closed."""
    gates = [tmp_path / f".closed_{name}" for name in names]
    for gate in gates:
        gate.touch()
    try:
        yield
    finally:
        for gate in gates:
            gate.unlink(missing_ok=True)


def waiting(server, name):
    """How many requests of a model wait."""
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    (line,) = [
        each
        for each in text.splitlines()
        if each.startswith("nv_inference_pending_request_count{") and f'model="{name}"' in each
    ]
    return int(float(line.rpartition(" ")[2]))


def infer_all(server, pool, names):
    return [pool.submit(server.infer, name, {"IN": ONE}) for name in names]


def results(pending):
    for each in pending:
        each.result()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as made:
        yield made


class TestSharing:
    def test_never_together(self, model, deploy, tmp_path, pool):
        """Models that share a resource never run together; one that needs nothing runs beside them."""
        shared(model, "a", "b")
        model("free", RECORDS)
        server = deploy()
        with closed(tmp_path, "a"):
            pending = infer_all(server, pool, "aabb")
            server.infer("free", {"IN": ONE})
        results(pending)
        results(infer_all(server, pool, "abababababababab"))
        steps = [step for step in record(tmp_path) if step[0] != "free"]
        assert together_max(steps) == 1
        assert len(steps) == 40

    def test_off(self, model, serve, tmp_path, pool, wait_until):
        """Without --rate-limit the resources mean nothing, not even wrong ones."""
        shared(model, "a", more="")
        model("b", RECORDS, more=group("name: 'R' global: true count: 100"))
        server = serve("--rate-limit-resource=R:1")
        with closed(tmp_path, "a", "b"):
            pending = infer_all(server, pool, "ab")
            wait_until(lambda: together_max(record(tmp_path)) == 2)
        results(pending)

    def test_as_much_as_there_is(self, model, serve, tmp_path, pool, wait_until):
        """Three of four instances run where the operator has resources for three; sizes are in bytes."""
        model("m", RECORDS, more=group("name: 'memory:2G'", "count: 4"))
        server = serve(LIMITED, "--rate-limit-resource=memory:7G")
        with closed(tmp_path, "m"):
            pending = infer_all(server, pool, "mmmm")
            wait_until(lambda: together_max(record(tmp_path)) == 3 and waiting(server, "m") == 1)
        results(pending)
        assert together_max(record(tmp_path)) == 3

    def test_threads(self, model, serve, tmp_path, pool, wait_until):
        """The instances of one process are limited as well."""
        thread = 'parameters { key: "INSTANCE_MODE" value { string_value: "thread" } }\n'
        model("m", RECORDS, more=thread + group(R1, "count: 4"))
        server = serve(LIMITED, "--rate-limit-resource=R:2")
        with closed(tmp_path, "m"):
            pending = infer_all(server, pool, "mmmm")
            wait_until(lambda: together_max(record(tmp_path)) == 2 and waiting(server, "m") == 2)
        results(pending)
        assert together_max(record(tmp_path)) == 2

    def test_batches(self, model, deploy, tmp_path, pool, wait_until):
        """Requests that wait for a resource become one batch."""
        shared(model, "a")
        model("b", RECORDS, more="max_batch_size: 8 dynamic_batching { }\n" + group(R1))
        server = deploy()
        with closed(tmp_path, "a"):
            pending = infer_all(server, pool, "a")
            wait_until(lambda: ("a", "begin") in record(tmp_path))
            row = np.array([[1]], np.int64)
            pending += [pool.submit(server.infer, "b", {"IN": row}) for _ in range(5)]
            wait_until(lambda: waiting(server, "b") == 5)
        results(pending)
        assert record(tmp_path).count(("b", "begin")) == 1

    def test_timeout(self, model, deploy, tmp_path, pool, wait_until):
        """A request that waits for a resource times out when its time is over."""
        policy = "default_queue_policy { default_timeout_microseconds: 1000 }"
        shared(model, "a")
        model("b", RECORDS, more="max_batch_size: 8 dynamic_batching { " + policy + " }\n" + group(R1))
        server = deploy()
        with closed(tmp_path, "a"):
            pending = infer_all(server, pool, "a")
            wait_until(lambda: ("a", "begin") in record(tmp_path))
            with pytest.raises(InferenceServerException, match="Request timeout expired"):
                server.infer("b", {"IN": np.array([[1]], np.int64)})
        results(pending)

    def test_sequences(self, model, deploy, tmp_path, pool):
        """Requests of sequences wait for resources, too."""
        for name in "ab":
            model(name, RECORDS, more="sequence_batching { }\nmax_batch_size: 4\n" + group(R1))
        server = deploy()

        def sequence(name, id):
            for index in range(5):
                ends = {"sequence_start": index == 0, "sequence_end": index == 4}
                server.infer(name, {"IN": np.array([[1]], np.int64)}, sequence_id=id, **ends)

        results([pool.submit(sequence, name, id) for name in "ab" for id in range(1, 5)])
        steps = record(tmp_path)
        assert together_max(steps) == 1
        assert {name for name, _ in steps} == {"a", "b"}


def test_priorities(model, deploy, tmp_path, pool, wait_until):
    """With work for both, a model of priority 1 runs twice as often as one of priority 2."""
    shared(model, "a", priority=1)
    shared(model, "b", priority=2)
    server = deploy()
    with closed(tmp_path, "a"):
        pending = infer_all(server, pool, "a")
        wait_until(lambda: ("a", "begin") in record(tmp_path))
        pending += infer_all(server, pool, "a" * 19 + "b" * 20)
        wait_until(lambda: waiting(server, "a") == 19 and waiting(server, "b") == 20)
    results(pending)
    order = [name for name, what in record(tmp_path) if what == "begin"]
    assert 19 <= order[:30].count("a") <= 21
    assert order[30:] == ["b"] * 10 or order[30:].count("b") >= 9


class TestGivingBack:
    def test_crash(self, model, deploy, tmp_path, pool, wait_until):
        """The resources of an instance that dies are free at once, and it runs again when it has started again."""
        shared(model, "a", "b")
        server = deploy()
        with closed(tmp_path, "a"):
            (lost,) = infer_all(server, pool, "a")
            wait_until(lambda: ("a", "begin") in record(tmp_path))
            waits = infer_all(server, pool, "b")
            wait_until(lambda: waiting(server, "b") == 1)
            os.kill(server.stub("a_0_0").pid, signal.SIGKILL)
            results(waits)
            with pytest.raises(InferenceServerException, match="not healthy"):
                lost.result()
        for name in "ab":
            server.infer(name, {"IN": ONE})

    def test_unload_and_load(self, model, serve, tmp_path, pool, wait_until):
        """A model that is unloaded gives all back, and its maxima go with it."""
        shared(model, "a")
        model("large", RECORDS, more=group("name: 'R' count: 2", "count: 2"))
        model("b", RECORDS, more=group(R1, "count: 2"))
        server = serve(LIMITED, "--model-control-mode=explicit", "--load-model=*")
        with closing(server.client()) as client:
            with closed(tmp_path, "a", "b"):
                pending = infer_all(server, pool, "ab")
                wait_until(lambda: together_max(record(tmp_path)) == 2)
            results(pending)
            client.unload_model("large")
            wait_until(lambda: not server.stubs("large_0_0") + server.stubs("large_0_1"))
            (tmp_path / ".record").unlink()
            with closed(tmp_path, "a", "b"):
                pending = infer_all(server, pool, "abb")
                wait_until(lambda: waiting(server, "a") + waiting(server, "b") == 2)
                assert together_max(record(tmp_path)) == 1
            results(pending)
            client.load_model("large")
            server.infer("large", {"IN": ONE})

    def test_other_groups(self, model, serve, tmp_path, pool):
        """Instances that come and go in place have the resources of their groups."""
        folder = model("a", RECORDS, more=group(R1))
        shared(model, "b")
        server = serve(LIMITED, "--model-control-mode=explicit", "--load-model=*")
        config = (folder / "config.pbtxt").read_text()
        with closing(server.client()) as client:
            for resources, count in (("", 2), (R1, 3), ("name: 'S' count: 1", 1), (R1, 1)):
                (folder / "config.pbtxt").write_text(config.replace(group(R1), group(resources, f"count: {count}")))
                client.load_model("a")
                results(infer_all(server, pool, "ab" * 8))
            (tmp_path / ".record").unlink()
            results(infer_all(server, pool, "ab" * 8))
        assert together_max(record(tmp_path)) == 1

    def test_failed_load(self, model, serve, wait_until):
        """A model that fails to load holds nothing."""
        shared(model, "b")
        fails = "    def initialize(self, args):\n        raise ValueError('no')\n"
        model("a", RECORDS + fails, more=group("name: 'R' global: true count: 1"))
        server = serve(LIMITED, "--model-control-mode=explicit", "--load-model=b")
        with closing(server.client()) as client:
            with pytest.raises(InferenceServerException, match="both global and device-specific"):
                client.load_model("a")
            client.unload_model("b")
            wait_until(lambda: "successfully unloaded 'b' version 1" in server.log)
            for _ in range(2):
                with pytest.raises(InferenceServerException, match="ValueError: no"):
                    client.load_model("a")
            client.load_model("b")
        server.infer("b", {"IN": ONE})


CALLS = RECORDS.replace(
    "        pass\n",
    """        request = pb_utils.InferenceRequest(
            model_name="b", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", np.array([1]))]
        )
        response = request.exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
""",
)


class TestCalls:
    def test_in_turn(self, model, deploy, tmp_path, pool):
        """Models that are called wait for their resources, as those that clients ask."""
        model("a", CALLS, more=group("name: 'S' count: 1"))
        shared(model, "b", "c")
        server = deploy()
        results(infer_all(server, pool, "abc" * 6))
        assert together_max([step for step in record(tmp_path) if step[0] in "bc"]) == 1

    def test_that_can_never_be_served(self, model, deploy):
        """A call to a model that needs what the caller holds is refused, and says so; Triton waits for ever."""
        model("a", CALLS, more=group(R1))
        shared(model, "b")
        server = deploy()
        with pytest.raises(InferenceServerException, match=r"would wait for ever.* a -> b -> a"):
            server.infer("a", {"IN": ONE})
        server.infer("b", {"IN": ONE})

    def test_ahead_of_those_that_wait_for_the_caller(self, model, serve, tmp_path, pool, wait_until):
        """A call goes ahead of a request that waits for what the caller holds."""
        model("a", CALLS, more=group("name: 'R' count: 2"))
        shared(model, "b")
        model("large", RECORDS, more=group("name: 'R' count: 3"))
        server = serve(LIMITED, "--rate-limit-resource=R:3")
        with closed(tmp_path, "a"):
            pending = infer_all(server, pool, ["a"])
            wait_until(lambda: ("a", "begin") in record(tmp_path))
            pending += infer_all(server, pool, ["large"])
            wait_until(lambda: waiting(server, "large") == 1)
        results(pending)
        order = [name for name, what in record(tmp_path) if what == "begin"]
        assert order == ["a", "b", "large"]


def gate_config(more):
    tensors = 'input {{ name: "INPUT0" {0} }} output {{ name: "OUTPUT0" {0} }}'.format("data_type: TYPE_INT64 dims: -1")
    return f'backend: "gate" {tensors}\n{more}'


class TestBackends:
    @pytest.mark.parametrize("mode", ["", "process"])
    def test_shares(self, model, serve, tmp_path, pool, wait_until, install_backends, mode):
        """A C++ backend, in the server or in a process of its own, shares resources with a model in Python."""
        where = f'parameters {{ key: "EXECUTION_MODE" value {{ string_value: "{mode}" }} }}\n' if mode else ""
        folder = model("native", None, gate_config(where + group(R1)))
        shared(model, "a")
        server = serve(LIMITED, f"--backend-directory={install_backends('gate')}")

        def infer(count):
            """All over one connection, so that requests become known where that is possible."""
            with closing(server.client()) as client:
                for _ in range(count):
                    client.infer("native", [to_input("INPUT0", ONE)])

        infer(10)
        wait_until(lambda: server.log.count("gate: 1 requests") == 10)
        (folder / "hold").touch()
        held = pool.submit(infer, 1)
        wait_until(lambda: server.log.count("gate: 1 requests") == 11)
        waits = infer_all(server, pool, "a")
        wait_until(lambda: waiting(server, "a") == 1)
        (folder / "hold").unlink()
        results([held, *waits])
        with closed(tmp_path, "a"):
            waits = infer_all(server, pool, "a")
            wait_until(lambda: record(tmp_path).count(("a", "begin")) == 2)
            behind = pool.submit(infer, 1)
            wait_until(lambda: waiting(server, "native") == 1)
            assert server.log.count("gate: 1 requests") == 11
        results([*waits, behind])


ENSEMBLE = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "a" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "M" } },
  { model_name: "b" model_version: -1 input_map { key: "IN" value: "M" } output_map { key: "OUT" value: "OUT" } }
] }
"""


def test_steps(model, deploy, tmp_path, pool):
    """Steps of an ensemble wait for resources; the ensemble itself holds none, so its steps may share one."""
    shared(model, "a", "b")
    model("e", None, ENSEMBLE)
    server = deploy()
    results(infer_all(server, pool, "eab" * 6))
    assert together_max(record(tmp_path)) == 1
    assert len(record(tmp_path)) == 48


def test_warm_up(model, serve, tmp_path, pool, wait_until):
    """A sample is executed with the resources of its instance."""
    value = "value { dims: 1 data_type: TYPE_INT64 zero_data: true }"
    warmup = f'model_warmup [ {{ name: "s" batch_size: 1 inputs {{ key: "IN" {value} }} }} ]\n'
    shared(model, "a")
    model("b", RECORDS, more=warmup + group(R1))
    server = serve(LIMITED, "--model-control-mode=explicit", "--load-model=a")
    with closing(server.client()) as client:
        with closed(tmp_path, "a"):
            pending = infer_all(server, pool, "a")
            wait_until(lambda: ("a", "begin") in record(tmp_path))
            pending.append(pool.submit(client.load_model, "b"))
            wait_until(lambda: server.stubs("b_0_0"))
        results(pending)
    assert together_max(record(tmp_path)) == 1
    server.infer("b", {"IN": ONE})


def test_too_much(model, serve):
    """A model that needs more than there is does not load, with Triton's words."""
    model("a", RECORDS, more=group("name: 'R' count: 5"))
    server = serve(LIMITED, "--rate-limit-resource=R:4", "--exit-on-error=false", "--strict-readiness=false")
    (row,) = json.loads(server.request("POST", "/v2/repository/index", b"{}").body)
    assert row["reason"] == (
        'Invalid argument: Resource count for "R" is limited to 4 which will prevent scheduling of one or more model '
        "instances, the minimum required count is 5"
    )


def test_a_server_without_a_rate_limiter_says_that_there_is_none(model, serve):
    model("limited", RECORDS, more=group(R1))
    model("usual", RECORDS)
    server = serve()
    assert server.log.count("has a rate_limiter, which has no effect in this server: see --rate-limit") == 1
    assert "model 'limited' has a rate_limiter" in server.log
