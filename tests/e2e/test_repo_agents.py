# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Repository agents: the calls of tests/native/agent.cc, by the lines that it writes, and the models that result.

Triton makes the same calls in the same order, unless a test says otherwise.
"""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([{}], np.int64))]) for _ in requests]
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("it does not load")
    def execute(self, requests):
        return []
"""
IN = {"IN": np.array([0], np.int64)}
POLL_FAILED = "failed to load 'm', failed to poll from model repository: "


def agents(*chain):
    """The agents of a configuration: each has a name and its parameters."""
    entries = []
    for name, parameters in chain:
        pairs = "".join(f'parameters {{ key: "{key}" value: "{value}" }} ' for key, value in parameters.items())
        entries.append(f'agents {{ name: "{name}" {pairs}}}')
    return f"model_repository_agents {{ {' '.join(entries)} }}\n"


def agent(tag, **parameters):
    """An agent of a chain."""
    return "tested", {"tag": tag, **parameters}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, compile_library):
    """The folder of two agents, which are the same."""
    folder = tmp_path_factory.mktemp("agents")
    for name in ("tested", "other"):
        (folder / name).mkdir()
        shutil.copy(compile_library("agent.cc"), folder / name / f"libtritonrepoagent_{name}.so")
    return folder


@pytest.fixture
def server(serve, directory, tmp_path, monkeypatch):
    """`server(*options)`: a server with these agents and explicit control."""
    log = tmp_path / ".agents"
    log.touch()
    monkeypatch.setenv("AGENT_LOG", str(log))

    def start(*options, mode="explicit", **how):
        server = serve(f"--repoagent-directory={directory}", f"--model-control-mode={mode}", *options, **how)
        server.agent_log = log
        return server

    return start


def told(server, since=0):
    """The calls of the agents, with places as one word: "there" for the repository, "copy" for their own."""
    lines = server.agent_log.read_text().splitlines()[since:]
    return [
        " ".join(
            "there" if word.startswith(str(server.log_path.parent)) else "copy" if "pyruntime_agent_" in word else word
            for word in line.split(" ")
        )
        for line in lines
    ]


def change(server, action, model="m"):
    """Load or unload a model."""
    with closing(server.client()) as client:
        getattr(client, f"{action}_model")(model)


def refusal(server, model="m"):
    """Why a model cannot be loaded."""
    with pytest.raises(InferenceServerException) as caught:
        change(server, "load", model)
    return caught.value.message()


def answer(server, version=""):
    """The answer of the model."""
    return server.infer("m", IN, model_version=version).as_numpy("OUT").tolist()


def test_life_of_a_model(server, write_model, tmp_path):
    """LOAD and UNLOAD come in the order of the chain, and their completions in the opposite one."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a"), ("other", {"tag": "b"})))
    server = server()
    change(server, "load")
    assert answer(server) == [1]
    loaded = [
        "agent initialized",
        "a initialized",
        "a LOAD there",
        "agent initialized",
        "b initialized",
        "b LOAD there",
        "b LOAD_COMPLETE there",
        "a LOAD_COMPLETE there",
    ]
    assert told(server) == loaded
    change(server, "unload")
    server.stop()
    assert told(server, len(loaded)) == [
        "a UNLOAD there",
        "b UNLOAD there",
        "b UNLOAD_COMPLETE there",
        "a UNLOAD_COMPLETE there",
        "a finalized",
        "agent finalized",
        "b finalized",
        "agent finalized",
    ]


def test_at_the_end_of_the_server(server, write_model, tmp_path):
    """A model that still serves is unloaded then. There is one agent, however often a chain names it."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a"), agent("b")))
    server = server(mode="none")
    before = len(told(server))
    server.stop()
    assert told(server)[:3] == ["agent initialized", "a initialized", "a LOAD there"]
    assert told(server, before) == [
        "a UNLOAD there",
        "b UNLOAD there",
        "b UNLOAD_COMPLETE there",
        "a UNLOAD_COMPLETE there",
        "a finalized",
        "b finalized",
        "agent finalized",
    ]


def test_a_changed_copy(server, write_model, tmp_path):
    """The copy that an agent has changed is loaded, and removed with the model. The next agent gets the copy."""
    folder = write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a", copy="2"), agent("b")))
    shutil.copytree(folder / "1", folder / "2")
    (folder / "2" / "model.py").write_text(BROKEN)
    server = server()
    change(server, "load")
    assert answer(server) == [1]
    assert [line for line in told(server) if line.startswith(("a copied", "b LOAD"))] == [
        "a copied to copy",
        "b LOAD copy",
        "b LOAD_COMPLETE copy",
    ]
    (place,) = {line.split()[-1] for line in server.agent_log.read_text().splitlines() if "copied" in line}
    assert os.path.isdir(place)
    change(server, "unload")
    server.stop()
    assert not os.path.exists(place)


def test_another_folder(server, write_model, tmp_path, tmp_path_factory):
    """The configuration is that of the repository, the versions are those of the other folder."""
    elsewhere = write_model(tmp_path_factory.mktemp("elsewhere"), "x", MODEL.format(5), more="max_batch_size: 7")
    (elsewhere / "1").rename(elsewhere / "3")
    write_model(tmp_path, "m", BROKEN, more=agents(agent("a", move=elsewhere)))
    server = server()
    change(server, "load")
    assert answer(server, "3") == [5]
    with closing(server.client()) as client:
        assert client.get_model_config("m")["max_batch_size"] == 0
        assert client.get_model_metadata("m")["versions"] == ["3"]


def test_another_folder_that_is_empty(server, write_model, tmp_path, tmp_path_factory):
    """The error is that of an empty repository folder; the agents get LOAD_FAIL."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a", move=tmp_path_factory.mktemp("empty"))))
    server = server()
    assert refusal(server) == (
        POLL_FAILED + "at least one version must be available under the version policy of model 'm'; "
        "its folder has no version's folder, such as '1', which may be empty for an ensemble"
    )
    assert [line.split()[1] for line in told(server)][:4] == ["initialized", "initialized", "LOAD", "LOAD_FAIL"]


def test_what_an_agent_sees_of_the_configuration(server, write_model, tmp_path):
    """All that is written down, and no default that the server would fill in."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a", config="", log="the agent logs")))
    server = server()
    change(server, "load")
    (line,) = (line for line in server.agent_log.read_text().splitlines() if line.startswith("a config "))
    config = json.loads(line.removeprefix("a config "))
    assert (config["name"], config["backend"], config["instance_group"]) == ("", "python", [])
    assert config["model_repository_agents"] == {
        "agents": [{"name": "tested", "parameters": {"config": "", "log": "the agent logs", "tag": "a"}}]
    }
    assert "the agent logs" in server.log


def test_loaded_again(server, write_model, tmp_path):
    """A model that has not changed is not shown to its agents again; one that has is, and the old one is unloaded."""
    folder = write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a", copy="junk")))
    server = server()
    change(server, "load")
    before = len(told(server))
    change(server, "load")
    assert told(server, before) == []
    (folder / "junk").write_text("of no use to the model")
    change(server, "load")
    assert answer(server) == [1]
    assert told(server, before)[:3] == ["a initialized", "a LOAD there", "a copied to copy"]
    server.stop()
    counted = [line.split()[1] for line in told(server)]
    assert {action: counted.count(action) for action in counted if action.isupper()} == {
        "LOAD": 2,
        "LOAD_COMPLETE": 2,
        "UNLOAD": 2,
        "UNLOAD_COMPLETE": 2,
    }
    assert counted[-1] == "finalized"


def test_an_agent_that_refuses(server, write_model, tmp_path):
    """Its message is the reason of the failed load; the agents up to it are notified, and those behind it are not."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a"), agent("b", fail="LOAD"), agent("c")))
    server = server()
    assert refusal(server) == POLL_FAILED + "the agent refuses LOAD"
    assert told(server)[1:6] == [
        "a initialized",
        "a LOAD there",
        "b initialized",
        "b LOAD there",
        "b LOAD_FAIL there",
    ]
    assert "a LOAD_FAIL there" in told(server)
    assert not [line for line in told(server) if line.startswith("c")]
    with closing(server.client()) as client:
        (row,) = client.get_model_repository_index()
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "the agent refuses LOAD")


def test_an_agent_that_cannot_begin(server, write_model, tmp_path):
    """An agent that refuses a model in its initialisation gets no further calls for it."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a"), agent("b", fail="INITIALIZE")))
    server = server()
    assert refusal(server) == POLL_FAILED + "the agent refuses INITIALIZE"
    assert told(server)[1:5] == ["a initialized", "a LOAD there", "b initialized", "a LOAD_FAIL there"]


def test_an_agent_that_throws(server, write_model, tmp_path):
    """It is as if it refused. Triton dies of it."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a", throw="LOAD")))
    server = server()
    message = "TRITONREPOAGENT_ModelAction threw an exception: the agent throws at LOAD"
    assert refusal(server) == POLL_FAILED + message


def test_an_agent_that_complains_too_late(server, write_model, tmp_path):
    """The model serves all the same, and the log has it."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a", fail="LOAD_COMPLETE")))
    server = server()
    change(server, "load")
    assert answer(server) == [1]
    expected = "Agent model returns error on TRITONREPOAGENT_ACTION_LOAD_COMPLETE: the agent refuses LOAD_COMPLETE"
    assert expected in server.log


def test_a_model_that_does_not_load(server, write_model, tmp_path):
    """Its agents get LOAD_FAIL, and are called again for the next load."""
    write_model(tmp_path, "m", BROKEN, more=agents(agent("a"), agent("b")))
    server = server()
    assert "it does not load" in refusal(server)
    assert "it does not load" in refusal(server)
    server.stop()
    once = ["a LOAD there", "b LOAD there", "b LOAD_FAIL there", "a LOAD_FAIL there"]
    assert [line for line in told(server) if "LOAD" in line] == once * 2


@pytest.mark.parametrize("name", ["missing", "../agents/tested"])
def test_no_such_agent(server, write_model, tmp_path, directory, name):
    """The message says where it was looked for; nothing leads out of there."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents((name, {})))
    server = server()
    expected = f"unable to find 'libtritonrepoagent_{name}.so' for repo agent '{name}', searched: {directory}"
    assert refusal(server) == POLL_FAILED + expected


def test_a_library_that_is_no_agent(serve, write_model, tmp_path, tmp_path_factory, compile_library):
    """It is refused before any of its code runs."""
    directory = tmp_path_factory.mktemp("agents")
    (directory / "tested").mkdir()
    path = shutil.copy(compile_library("identity.cc"), directory / "tested" / "libtritonrepoagent_tested.so")
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a")))
    server = serve(f"--repoagent-directory={directory}", "--model-control-mode=explicit")
    expected = f"unable to find required entrypoint 'TRITONREPOAGENT_ModelAction' in shared library: {path}"
    assert expected in refusal(server)


def test_misuse(server, write_model, tmp_path):
    """A wrong call of an agent is refused with Triton's message."""
    write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a", misuse="")))
    server = server()
    change(server, "load")
    current = "current action type is TRITONREPOAGENT_ACTION_LOAD_COMPLETE"
    assert told(server)[-5:] == [
        "a parameter: Invalid argument: index out of range for model parameters",
        f"a update: Invalid argument: location can only be updated during TRITONREPOAGENT_ACTION_LOAD, {current}",
        "a remote: Invalid argument: Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'",
        "a release: Unavailable: No mutable location to be deleted",
        "a version: Invalid argument: model configuration version 2 not supported, supported versions are: 1",
    ]


def test_files_of_a_request(server, write_model, tmp_path):
    """They too are shown to the agents that the configuration with them names, and are there until the end."""
    write_model(tmp_path, "m", BROKEN)
    server = server()
    config = {
        "backend": "python",
        "input": [{"name": "IN", "data_type": "TYPE_INT64", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]}],
        "model_repository_agents": {"agents": [{"name": "tested", "parameters": {"tag": "a"}}]},
    }
    code = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n" + MODEL.format(8)
    with closing(server.client()) as client:
        client.load_model("m", config=json.dumps(config), files={"file:1/model.py": code.encode()})
    assert answer(server) == [8]
    (location,) = {line.split()[-1] for line in told(server) if "LOAD" in line}
    assert os.path.isfile(os.path.join(location, "1", "model.py"))
    server.stop()
    assert told(server)[-2:] == ["a finalized", "agent finalized"]
    assert not os.path.exists(location)


def test_polling(server, write_model, tmp_path, wait_until):
    """A change that polling finds is shown to the agents before it is loaded."""
    folder = write_model(tmp_path, "m", MODEL.format(1), more=agents(agent("a", copy="junk")))
    server = server("--repository-poll-secs=1", mode="poll")
    assert answer(server) == [1]
    path = folder / "1" / "model.py"
    # Written at once, because agents would be called for half a file as well.
    changed = tmp_path / ".model.py"
    changed.write_text(path.read_text().replace("[1]", "[2]"))
    changed.replace(path)
    wait_until(lambda: answer(server) == [2])
    assert [line for line in told(server) if line.endswith("LOAD there")] == ["a LOAD there"] * 2


def test_many_models(server, write_model, tmp_path):
    """An agent may be of many models, which come and go at once; it ends when it is of none."""
    names = [f"m{number}" for number in range(6)]
    for name in names:
        write_model(tmp_path, name, MODEL.format(1), more=agents(agent(name)))
    server = server()
    with ThreadPoolExecutor(len(names)) as threads:
        for action in ("load", "unload", "load", "unload"):
            list(threads.map(lambda name, action=action: change(server, action, name), names))
    server.stop()
    lines = told(server)
    for name in names:
        own = [line.removeprefix(name + " ") for line in lines if line.startswith(name + " ")]
        once = [
            "initialized",
            "LOAD there",
            "LOAD_COMPLETE there",
            "UNLOAD there",
            "UNLOAD_COMPLETE there",
            "finalized",
        ]
        assert own == once * 2
    begun = [line for line in lines if line.startswith("agent ")]
    assert begun == ["agent initialized", "agent finalized"] * (len(begun) // 2)
    assert lines[-1] == "agent finalized"
