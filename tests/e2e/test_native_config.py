# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native backends: the configuration that they see, how they may complete it, and where they are found."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
TOLD = 'backend: "told"\n'
# A little of everything that a configuration may say.
MUCH = """
max_batch_size: 4
version_policy { specific { versions: [ 1, 3 ] } }
instance_group [ { name: "ones" count: 2 kind: KIND_CPU host_policy: "mine" }, { count: 1 kind: KIND_CPU } ]
dynamic_batching {
  preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 1 priority_levels: 3 default_priority_level: 2
  priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 9007199254740993 } }
}
parameters { key: "text" value { string_value: "\\" \\\\ \\n \u00e4" } }
metric_tags { key: "a" value: "b" }
"""
# Numbers of 64 bits, which JSON of protobuf has as texts and Triton's has not.
NUMBERS = {"dims", "shape", "versions", "default_timeout_microseconds", "max_queue_delay_microseconds"}
# A backend's completion, with fields that it may not set.
COMPLETION = {
    "max_batch_size": 8,
    "input": [{"name": "INPUT0", "data_type": "TYPE_STRING", "dims": ["1"]}],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_STRING", "dims": [1]}],
    "dynamic_batching": {"preferred_batch_size": [4]},
    "instance_group": [{"count": 7}],
}


@pytest.fixture(scope="module")
def folder(install_backends):
    """The folder of the backends."""
    return install_backends("told", "identity", "gather")


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model, folder):
    """A server of models with different configurations."""
    repository = tmp_path_factory.mktemp("told")
    write_model(repository, "plain", None, TOLD + TENSORS)
    full = write_model(repository, "full", None, TOLD + TENSORS + MUCH)
    for version in (2, 3):
        (full / str(version)).mkdir()
    (write_model(repository, "complete", None, TOLD) / "complete.json").write_text(json.dumps(COMPLETION))
    apart = 'parameters { key: "EXECUTION_MODE" value { string_value: "process" } }\n'
    (write_model(repository, "complete_apart", None, TOLD + apart) / "complete.json").write_text(json.dumps(COMPLETION))
    one = "instance_group { count: 1 kind: KIND_CPU }\n"
    (write_model(repository, "own", None, TOLD + TENSORS + one) / "complete.json").write_text("{}")
    near = 'instance_group { count: 1 kind: KIND_CPU host_policy: "mine" }\n'
    write_model(repository, "near", None, TOLD + TENSORS + near)
    write_model(repository, "apart", None, TOLD + TENSORS + near + apart)
    three = 'instance_group { count: 3 }\nparameters { key: "TOGETHER" value { string_value: "3" } }\n'
    write_model(repository, "together", None, 'backend: "at_once"\n' + TENSORS + three)
    write_model(repository, "in_turn", None, TOLD + TENSORS + "instance_group { count: 3 }\n")
    (folder / "at_once").mkdir()
    shutil.copy(folder / "told" / "libtriton_told.so", folder / "at_once" / "libtriton_at_once.so")
    with serving(repository, *options(folder)) as server:
        yield server


def options(folder):
    """The folder of the backends, and the settings of those that have some."""
    settings = ["told,GROUP=2", "told,answer=42", "at_once,PARALLEL=true", "default-max-batch-size=3"]
    policies = ["mine,numa-node=0", "mine,cpu-cores=0-1"]
    return [
        f"--backend-directory={folder}",
        *(f"--backend-config={setting}" for setting in settings),
        *(f"--host-policy={policy}" for policy in policies),
    ]


def ask(server, question, model="plain", rows=(), **more):
    """The backend's answer to a question about its arguments."""
    inputs = {"INPUT0": np.full((*rows, 1), question.encode(), object)}
    return server.infer(model, inputs, **more).as_numpy("OUTPUT0").flat[0].decode()


def numbers(value, name=""):
    """All values below those names that are NUMBERS."""
    if isinstance(value, dict):
        return [each for key, part in value.items() for each in numbers(part, key)]
    if isinstance(value, list):
        return [each for part in value for each in numbers(part, name)]
    return [value] if name in NUMBERS else []


@pytest.mark.parametrize(("model", "rows"), [("plain", ()), ("full", (1,)), ("complete", (1,))])
def test_model_config(server, model, rows):
    """A backend reads the configuration that clients read: all fields are there, and numbers are numbers."""
    text = ask(server, "config", model, rows)
    with closing(server.client()) as client:
        assert json.loads(text) == client.get_model_config(model)
    found = json.loads(text)
    assert found["input"][0]["is_shape_tensor"] is False
    assert found["optimization"]["input_pinned_memory"] == {"enable": True}
    assert len(numbers(found)) >= 2
    assert {type(number) for number in numbers(found)} == {int}
    if model == "full":
        policy = found["dynamic_batching"]["priority_queue_policy"]["1"]
        assert policy["default_timeout_microseconds"] == 9007199254740993
        assert found["parameters"]["text"]["string_value"] == '" \\ \n \u00e4'


def test_backend_config(server, folder):
    """The command line, whose values are all texts; settings for all backends are those of each."""
    assert json.loads(ask(server, "backend_config"))["cmdline"] == {
        "auto-complete-config": "true",
        "backend-directory": str(folder),
        "min-compute-capability": "6.000000",
        "default-max-batch-size": "3",
        "GROUP": "2",
        "answer": "42",
    }


def test_of_instances(server):
    """Names and devices of instances; the host policy is that of the group, or else that of the device."""
    assert ask(server, "instance", "own") == "own_0_0 CPU 0"
    assert {ask(server, "instance", "full", (1,)) for _ in range(20)} <= {
        "ones_0 CPU 0",
        "ones_1 CPU 0",
        "full_1_0 CPU 0",
    }
    mine = {"mine": {"numa-node": "0", "cpu-cores": "0-1"}}
    assert json.loads(ask(server, "host_policy", "own")) == {"cpu": {}}
    assert json.loads(ask(server, "host_policy", "near")) == mine
    assert json.loads(ask(server, "host_policy", "apart")) == mine
    assert json.loads(ask(server, "host_policy", "full", (1,))) in ({"cpu": {}}, mine)


def test_location(server):
    """A model's files, where a backend finds them."""
    assert ask(server, "location").endswith("/told0/plain")


def test_questions_that_nobody_answers(server):
    """The code of a backend's error is that of the answer."""
    status, message = server.refusal("plain", {"INPUT0": np.array([b"none"], object)})
    assert (status, message) == (404, "nobody has told the backend about 'none'")


def test_completed(server):
    """A backend completes tensors, the batch size and the scheduler; instances are not its to say there."""
    with closing(server.client()) as client:
        found = client.get_model_config("complete")
        assert client.get_model_metadata("complete")["inputs"] == [
            {"name": "INPUT0", "datatype": "BYTES", "shape": [-1, 1]}
        ]
    assert found["max_batch_size"] == 8
    assert found["dynamic_batching"]["preferred_batch_size"] == [4]
    assert [(group["kind"], group["count"]) for group in found["instance_group"]] == [("KIND_CPU", 2)]


def test_preferred_groups(server):
    """A model that says nothing of its instances has those that its backend prefers."""
    with closing(server.client()) as client:
        counts = [client.get_model_config(name)["instance_group"][0]["count"] for name in ("plain", "own")]
    assert counts == [2, 1]


@pytest.mark.parametrize("model", ["complete", "complete_apart"])
def test_completed_configuration_read_again(server, model):
    """A backend that has set a few fields reads at once the whole configuration, normalised: that of clients."""
    with closing(server.client()) as client:
        config = client.get_model_config(model)
    assert json.loads(ask(server, "completed", model, (1,))) == config
    assert config["max_batch_size"] == 8
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    (tensor,) = config["input"]
    members = {
        "name": "INPUT0",
        "data_type": "TYPE_STRING",
        "format": "FORMAT_NONE",
        "dims": [1],
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }
    assert tensor == members
    assert config["batch_input"] == config["batch_output"] == []


def test_completed_without_a_configuration(serve, model, folder):
    """A model of nothing but a file: its backend is inferred, and completes the rest; or says that it does not."""
    (folder / "onnxruntime").mkdir()
    shutil.copy(folder / "told" / "libtriton_told.so", folder / "onnxruntime" / "libtriton_onnxruntime.so")
    bare = model("bare", None, None)
    for path in (bare, model("silent", None, None)):
        (path / "1" / "model.onnx").touch()
    (bare / "complete.json").write_text(json.dumps(COMPLETION))
    (model("named.told", None, None) / "complete.json").write_text(json.dumps(COMPLETION))
    (model("unknown", None, None) / "1" / "model.bin").touch()
    model("plain", None, TOLD + TENSORS)
    server = serve(*options(folder), "--exit-on-error=false", "--strict-readiness=false")
    told = json.loads(ask(server, "completed", "bare", (1,)))
    assert [told[key] for key in ("backend", "platform", "default_model_filename", "max_batch_size")] == [
        "onnxruntime",
        "onnxruntime_onnx",
        "model.onnx",
        8,
    ]
    told = json.loads(ask(server, "completed", "named.told", (1,)))
    assert (told["backend"], told["default_model_filename"]) == ("told", "model.told")
    with closing(server.client()) as client:
        reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
    assert reasons["silent"].startswith("Not found: model configuration is not provided for model 'silent': ")
    assert reasons["unknown"].startswith("Invalid model name: Could not determine backend for model 'unknown' ")
    assert "Its version has model.bin, and none of model.graphdef, " in reasons["unknown"]


def test_a_tensor_without_a_datatype(serve, model, folder):
    """One sentence says what is missing and where; a backend may still complete it."""
    incomplete = 'input { name: "INPUT0" dims: [ 1 ] }'
    model("wrong", None, TOLD + incomplete)
    (model("right", None, TOLD + incomplete) / "complete.json").write_text(json.dumps(COMPLETION))
    server = serve(*options(folder), "--exit-on-error=false", "--strict-readiness=false")
    with closing(server.client()) as client:
        reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
    assert reasons["wrong"] == "Invalid argument: model input 'INPUT0' must specify 'data_type'"
    assert ask(server, "instance", "right", (1,)).startswith("right_")


def test_completion_is_not_wanted(serve, model, folder):
    """--disable-auto-complete-config: the configuration stays as it is."""
    (model("own", None, TOLD + TENSORS) / "complete.json").write_text(json.dumps(COMPLETION))
    server = serve(*options(folder), "--disable-auto-complete-config")
    assert json.loads(ask(server, "config", "own"))["max_batch_size"] == 0


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ('{"input": [{"name": "INPUT0", "data_type": "TYPE_NONE"}]}', "TYPE_NONE"),
        ('{"max_batch_size": -1}', "max_batch_size"),
        ('{"dynamic_batching": 5}', "dynamic_batching"),
        ("[]", "the configuration of model 'wrong' that its backend has set is no JSON object"),
        ("{", "the configuration of model 'wrong' that its backend has set is no JSON object"),
    ],
)
def test_completions_that_are_none(serve, model, folder, completion, reason):
    """A completion by a backend is checked; the reason says what is wrong with it."""
    (model("wrong", None, TOLD) / "complete.json").write_text(completion)
    model("plain", None, TOLD + TENSORS)
    server = serve(*options(folder), "--exit-on-error=false", "--strict-readiness=false")
    with closing(server.client()) as client:
        (row,) = (row for row in client.get_model_repository_index() if row["name"] == "wrong")
    assert row["state"] == "UNAVAILABLE"
    assert reason in row["reason"]
    assert ask(server, "instance").startswith("plain_")


def test_instances_at_a_time(server):
    """A backend says whether its instances may be initialized while others are."""
    assert ask(server, "together", "together") == "3"
    assert ask(server, "together", "in_turn") == "1"


# Where backends are.


def integers(backend, more=""):
    """A configuration of one tensor in and one out, of numbers, by rows."""
    tensor = '{{ name: "{}" data_type: TYPE_INT32 dims: [ 1 ] }}'
    backend = f'backend: "{backend}"\nmax_batch_size: 4\n' if backend else "max_batch_size: 4\n"
    return f"{backend}input [ {tensor.format('INPUT0')} ]\noutput [ {tensor.format('OUTPUT0')} ]\n{more}"


def answer(server, model, version=""):
    """The answer to 7: 7 by the backend "identity", 14 by "gather"."""
    inputs = {"INPUT0": np.array([[7]], np.int32)}
    return server.infer(model, inputs, model_version=version).as_numpy("OUTPUT0").item()


def test_where_libraries_are(serve, model, folder):
    """A library of a version, of a model, of all models, in that order; `runtime` names another file."""

    def bring(name, path):
        shutil.copy(folder / name / f"libtriton_{name}.so", path)

    both = "version_policy { all { } }\n"
    versions = model("versions", None, integers("gather", both))
    (versions / "2").mkdir()
    bring("identity", versions / "2" / "libtriton_gather.so")
    bring("identity", model("of_model", None, integers("gather")) / "libtriton_gather.so")
    bring("identity", model("only_here", None, integers("mine")) / "libtriton_mine.so")
    bring("identity", model("runtime", None, integers("gather", 'runtime: "other.so"\n')) / "1" / "other.so")
    model("shared", None, integers("gather"))
    server = serve(f"--backend-directory={folder}", "--log-verbose=1")
    assert [answer(server, "versions", version) for version in ("1", "2")] == [14, 7]
    assert [answer(server, name) for name in ("of_model", "only_here", "runtime", "shared")] == [7, 7, 7, 14]
    gathers = ("of_model/", "runtime/1/other.so", "versions/2/", "gather/")
    paths = paths_in_table(server.log, "gather")
    assert len(paths) == len(gathers), paths
    assert all(any(part in path for path in paths) for part in gathers), paths


def paths_in_table(log, backend):
    """The paths in the rows of a backend; a path that is wider than its column goes on in the next line."""
    paths = []
    for name, path in re.findall(r"^\| ([^|]*?) +\| ([^|]*?) +\| ", log, re.MULTILINE):
        if name:
            paths.append((name, path))
        elif paths:
            paths[-1] = (paths[-1][0], paths[-1][1] + path)
    return [path for name, path in paths if name == backend]


def test_libraries_that_are_none(serve, model, folder, tmp_path):
    """A file that is not a library for this machine is not loaded, and the index has the reason."""

    def library(name, contents):
        (model(name, None, integers(name)) / f"libtriton_{name}.so").write_bytes(contents)

    good = (folder / "identity" / "libtriton_identity.so").read_bytes()
    library("empty", b"")
    library("text", b"#!/bin/sh\n")
    library("cut", good[: len(good) // 2])
    library("head", good[:64])
    library("machine", good[:18] + b"\xf3\0" + good[20:])
    model("missing", None, integers("nowhere"))
    model("runtime", None, integers("gather", 'runtime: "nowhere.so"\n'))
    model("escape", None, integers("gather", 'runtime: "../../nowhere.so"\n'))
    needs = model("needs", None, integers("needs")) / "libtriton_needs.so"
    code = "extern int not_there(void); int TRITONBACKEND_ModelInstanceExecute(void) { return not_there(); }"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", needs], input=code, text=True, check=True)
    model("folder", None, integers("folder")).joinpath("libtriton_folder.so").mkdir()
    model("good", None, integers("gather"))
    server = serve(f"--backend-directory={folder}", "--exit-on-error=false", "--strict-readiness=false")
    with closing(server.client()) as client:
        reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
    absent, unable = "Invalid argument: unable to find backend library", "Not found: unable to load shared library"
    for name, reason in {
        "runtime": f"{absent} 'nowhere.so' for model 'runtime'",
        "escape": "Invalid argument: backend library name '../../nowhere.so' escapes backend directory",
        "missing": f"{absent} for backend 'nowhere', try specifying runtime",
        "folder": f"{absent} for backend 'folder', try specifying runtime",
        "needs": f"{unable}: {needs}: undefined symbol: not_there; model 'needs' needs it",
        "empty": f"{unable} of model 'empty': {tmp_path}/empty/libtriton_empty.so is empty",
        "text": f"{unable} of model 'text': {tmp_path}/text/libtriton_text.so is no ELF file",
        "cut": f"{unable} of model 'cut': {tmp_path}/cut/libtriton_cut.so is truncated",
        "head": f"{unable} of model 'head': {tmp_path}/head/libtriton_head.so is truncated",
        "machine": f"{unable} of model 'machine': {tmp_path}/machine/libtriton_machine.so is built for ",
    }.items():
        assert reasons[name].startswith(reason)
        assert any(reason in line and line.startswith("E") for line in server.log.splitlines())
    assert answer(server, "good") == 14


WITHOUT = """
import sys
sys.modules["pyruntime.runtime.native._triton"] = None
from pyruntime.runtime.cli import main
sys.exit(main())
"""


def test_an_extension_that_cannot_be_loaded(serve, model, folder, tmp_path_factory):
    """Models in Python are served, others are not, and the index has the reason."""
    model("native", None, integers("gather"))
    model(
        "python", "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n", integers("python")
    )
    script = tmp_path_factory.mktemp("bin") / "without"
    # It is given the interpreter and its options, in front of those that are the server's.
    script.write_text(f"#!{sys.executable}\nimport sys\nsys.argv[1:4] = []\n{WITHOUT}")
    script.chmod(0o755)
    server = serve(
        f"--backend-directory={folder}", "--exit-on-error=false", "--strict-readiness=false", wrapper=[str(script)]
    )
    with closing(server.client()) as client:
        rows = {row["name"]: row for row in client.get_model_repository_index()}
        assert client.is_model_ready("python")
    assert rows["native"]["state"] == "UNAVAILABLE"
    assert "needs the native backend 'gather'" in rows["native"]["reason"]
    assert "cannot load what runs native backends: " in rows["native"]["reason"]
