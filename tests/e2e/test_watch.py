# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What an open page follows, of a real server: counters, instances, log lines, and the stacks of its stubs."""

import json

import numpy as np

from .harness.ensembles import chain

SLEEPER = """
class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists(os.path.join(args["model_repository"], "hang")):
            wait_for_weights()

    def execute(self, requests):
        pb_utils.Logger.log_info("it is executed")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int64))]) for _ in requests]

def wait_for_weights():
    while True:
        time.sleep(1)
"""


def watch(server, **document):
    answer = server.request("POST", "/page/watch", json.dumps(document).encode())
    assert answer.status == 200
    return json.loads(answer.body)


def stacks(server, model):
    answer = server.request("POST", "/page/stacks", json.dumps({"model": model}).encode())
    assert answer.status == 200, answer.body
    return json.loads(answer.body)["stacks"]


def test_following(model, serve, wait_until):
    """Counters grow with requests, and what a model logs is among the new lines."""
    model("sleeper", SLEEPER)
    server = serve()
    before = watch(server)
    assert before["server"]["ready"]
    assert before["models"] == [{"name": "sleeper", "version": "1", "state": "READY", "reason": ""}]
    assert any("successfully loaded 'sleeper'" in line[-1] for line in before["log"])
    server.infer("sleeper", {"IN": np.ones(1, np.int64)})
    last = before["log"][-1][0]

    def executed():
        return [line for line in watch(server, log_after=last)["log"] if "it is executed" in line[-1]]

    ((_, _, level, file, _, _),) = wait_until(executed)
    assert (level, file.endswith("/1/model.py")) == ("I", True)
    (version,) = watch(server)["versions"]
    assert (version["success"], version["executions"]) == (1, 1)
    assert version["ns"]["total"] > version["ns"]["infer"] > 0
    assert [(each["name"], each["state"]) for each in version["instances"]] == [("sleeper_0", "ready")]


def test_levels_and_quantiles(model, serve):
    """What waits in each level of a queue, if it has levels; quantiles only where the settings have summaries."""
    model(
        "sleeper", SLEEPER, more="max_batch_size: 1 dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
    )
    (version,) = watch(serve())["versions"]
    assert (version["levels"], version["quantiles_us"]) == ({"1": 0, "2": 0}, None)
    (version,) = watch(serve("--metrics-config=summary_latencies=true"))["versions"]
    assert version["quantiles_us"] == [None, None]


def test_stacks(model, serve):
    """The stacks of a model's own stubs."""
    model("sleeper", SLEEPER)
    server = serve()
    (found,) = stacks(server, "sleeper")
    assert (found["instance"], found["version"], found["problem"]) == ("sleeper_0", "1", "")
    assert "MainThread" in found["text"]
    assert stacks(server, "nobody") == []


def test_stacks_of_a_load_that_hangs(model, serve, tmp_path, wait_until):
    """A model that does not come to an end of its initialisation is found as well."""
    model("sleeper", SLEEPER)
    (tmp_path / "sleeper" / "hang").touch()
    server = serve(ready=False)
    wait_until(lambda: "wait_for_weights" in "".join(each["text"] for each in _stacks_or_none(server)))
    (row,) = watch(server)["models"]
    assert row["state"] == "LOADING"


def _stacks_or_none(server):
    try:
        return stacks(server, "sleeper")
    except OSError:
        return []  # it does not listen yet


def test_server_of_somebody_else(model, serve, serving, tmp_path_factory, write_model):
    """A model of another server is not shown, even if it has the same name."""
    model("sleeper", SLEEPER)
    first = serve()
    other = tmp_path_factory.mktemp("other")
    write_model(other, "sleeper", SLEEPER)
    with serving(other) as second:
        pids = {server.port: {each["pid"] for each in stacks(server, "sleeper")} for server in (first, second)}
    assert len(pids[first.port]) == len(pids[second.port]) == 1
    assert pids[first.port] != pids[second.port]


def test_ensemble(model, serve):
    """An ensemble is followed as any other model; it has no process with stacks."""
    model("sleeper", SLEEPER)
    model("twice", None, chain("sleeper", "sleeper"))
    server = serve()
    server.infer("twice", {"IN": np.ones(1, np.int64)})
    versions = {version["name"]: version for version in watch(server)["versions"]}
    assert (versions["twice"]["success"], versions["sleeper"]["success"]) == (1, 2)
    assert stacks(server, "twice") == []
