# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances on GPUs, on a machine that has them only by the stand-in: what servers and processes know of them."""

import json
import os
import signal
from contextlib import closing

import numpy as np
import pytest

from .harness.models import parameters

GIB = 1 << 30
MACHINE = {
    "gpus": [
        {"uuid": "GPU-old", "compute_capability": [5, 2]},
        {"uuid": "GPU-a", "used_bytes": 12 * GIB},
        {"uuid": "GPU-b"},
        {"uuid": "MIG-c", "is_slice": True, "used_bytes": 8 * GIB},
        {"uuid": "GPU-full", "used_bytes": 15 * GIB},
    ]
}
# Answers with what it was told, and with what CUDA would see.
WHO = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        told = {
            "pid": str(os.getpid()),
            "kind": self.args["model_instance_kind"],
            "device": self.args["model_instance_device_id"],
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "-"),
            "order": os.environ["CUDA_DEVICE_ORDER"],
        }
        array = np.array([1], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], parameters=told) for _ in requests]
"""
# Restricts itself, as models do for frameworks that have no other way.
STUBBORN = WHO.replace(
    "self.args = args",
    'self.args = args\n        os.environ["CUDA_VISIBLE_DEVICES"] = args["model_instance_device_id"]',
)
ONE = {"IN": np.array([1], np.int32)}
TENSORS = {name: [{"name": name, "data_type": "TYPE_INT32", "dims": [1]}] for name in ("IN", "OUT")}
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
MODELS = {
    "default": "",
    "one": "instance_group { kind: KIND_GPU gpus: [ 1 ] }",
    "slice": "instance_group { gpus: [ 3 ] }",
    "growing": "instance_group { gpus: [ 3 ] }",
    "on_cpu": "instance_group { kind: KIND_CPU }",
    "itself": "instance_group { kind: KIND_MODEL }",
    "all": "instance_group { kind: KIND_GPU gpus: [ 2 ] }" + parameters(VISIBLE_GPUS="all"),
    "threads": "instance_group { count: 2 gpus: [ 2 ] }" + parameters(INSTANCE_MODE="thread"),
    "too_old": "instance_group { kind: KIND_GPU gpus: [ 0 ] }",
    "confused": "instance_group { kind: KIND_MODEL gpus: [ 1 ] }",
    "full": "instance_group { kind: KIND_GPU gpus: [ 2, 4 ] }",
    "stubborn": "instance_group { kind: KIND_GPU gpus: [ 2 ] }",
}
ALL_UUIDS = "GPU-old,GPU-a,GPU-b,MIG-c,GPU-full"


# Models of C++ backends, in the server's process and in processes of their own.
NATIVE = {
    "native": "instance_group { kind: KIND_GPU gpus: [ 2 ] }",
    "isolated": "instance_group { kind: KIND_GPU gpus: [ 2 ] }" + parameters(EXECUTION_MODE="process"),
    "isolated_slice": "instance_group { kind: KIND_GPU gpus: [ 3 ] }" + parameters(EXECUTION_MODE="process"),
    "native_slice": "instance_group { kind: KIND_GPU gpus: [ 3 ] }",
}
QUESTION = """
backend: "told"
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def server(serving, write_model, tmp_path_factory, install_backends):
    """One server of all models, on a machine with the GPUs of MACHINE. It also serves the models that load."""
    repository = tmp_path_factory.mktemp("gpus")
    for name, more in MODELS.items():
        code = STUBBORN if name == "stubborn" else WHO
        write_model(repository, name, code, CONFIG, more)
    for name, more in NATIVE.items():
        write_model(repository, name, None, QUESTION, more)
    machine = tmp_path_factory.mktemp("machine") / "gpus.json"
    machine.write_text(json.dumps(MACHINE))
    hidden = ("-u", "CUDA_VISIBLE_DEVICES", "-u", "CUDA_DEVICE_ORDER")
    wrapper = ("env", *hidden, f"PYRUNTIME_GPU_STAND_IN={machine}")
    options = ["--model-control-mode=explicit", "--exit-on-error=false", "--strict-readiness=false"]
    options += [f"--load-model={name}" for name in (*MODELS, *NATIVE)]
    options += ["--model-load-gpu-limit=4:0.9", f"--backend-directory={install_backends('told')}"]
    with serving(repository, *options, wrapper=wrapper) as server:
        yield server


def told(server, name):
    """What an instance of a model was told, and sees: its kind, its device, CUDA_VISIBLE_DEVICES, and its process."""
    told = server.infer(name, ONE).get_response()["parameters"]
    assert told["order"] == "PCI_BUS_ID"
    return told["kind"], told["device"], told["visible"]


def groups(server, name):
    """The instance groups of a model as it serves."""
    config = json.loads(server.request("GET", f"/v2/models/{name}/config").body)
    return [(group["kind"], group["count"], group["gpus"]) for group in config["instance_group"]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one", ("GPU", "0", "GPU-a")),
        ("slice", ("GPU", "0", "MIG-c")),
        ("on_cpu", ("CPU", "0", "-")),
        ("itself", ("MODEL", "0", "-")),
        ("all", ("GPU", "2", ALL_UUIDS)),
        ("threads", ("GPU", "0", "GPU-b")),
    ],
)
def test_what_an_instance_sees(server, name, expected):
    """Its own GPU as number 0, by the UUID, unless the model wants all of them; others see what the server sees."""
    assert told(server, name) == expected


def test_default(server):
    """A model that says nothing is on all GPUs with room, and answers from the emptiest; the log says why."""
    assert groups(server, "default") == [("KIND_GPU", 1, [2, 3, 1])]
    assert told(server, "default") == ("GPU", "0", "GPU-b")
    assert (
        "'default' version 1 is on GPU 2 (16.0 of 16.0 GiB free), GPU 3 (8.0 of 16.0 GiB free), GPU 1 (4.0 of 16.0 GiB "
        "free), and not on GPU 4 (1.0 of 16.0 GiB free), which has no room; its configuration names no GPUs"
    ) in server.log
    assert "'one' version 1 is on" not in server.log
    assert "GPU 0 is Stand-in (GPU-old), compute capability 5.2, 16.0 GiB; not used" in server.log


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "too_old",
            "Invalid argument: instance group too_old_0 of model too_old specifies invalid or unsupported gpu id 0. "
            "GPUs with at least the minimum required CUDA compute compatibility of 6.000000 are: 1, 2, 3, 4",
        ),
        (
            "confused",
            "Invalid argument: instance group confused_0 of model confused has kind KIND_MODEL but specifies one or "
            "more GPUs",
        ),
        (
            "full",
            "Unavailable: can not create model 'full_0_1': memory limit set for GPU 4 has exceeded, model loading is "
            "rejected.",
        ),
        (
            "native_slice",
            "Internal: instance 'native_slice_0_0' of model 'native_slice' is on GPU 3, a slice of a GPU that the "
            "server's process cannot use besides the first one: give the model the parameter EXECUTION_MODE 'process'",
        ),
    ],
)
def test_refusals(server, name, reason):
    """Triton's words, but for what Triton cannot do either."""
    rows = {row["name"]: row for row in json.loads(server.request("POST", "/v2/repository/index", b"{}").body)}
    assert (rows[name]["state"], rows[name]["reason"]) == ("UNAVAILABLE", reason)


def test_a_model_that_chooses_its_gpu_itself(server):
    """The number that it has been told is no number of the machine: the log says what is wrong."""
    assert told(server, "stubborn") == ("GPU", "0", "0")
    assert "the model has set CUDA_VISIBLE_DEVICES to '0'" in server.log


@pytest.mark.parametrize(
    ("name", "instance", "policy"),
    [
        ("native", "native_0_0 GPU 2", "gpu_2"),
        ("isolated", "isolated_0_0 GPU 0", "gpu_2"),
        ("isolated_slice", "isolated_slice_0_0 GPU 0", "gpu_3"),
    ],
)
def test_native_backends(server, name, instance, policy):
    """In the server's process, which sees all GPUs, they have its numbers; a process of its own sees one. The host
    policies are the operator's, and have his numbers."""

    def ask(question):
        result = server.infer(name, {"INPUT0": np.array([question], np.object_)})
        return result.as_numpy("OUTPUT0")[0].decode()

    assert ask("instance") == instance
    assert json.loads(ask("host_policy")) == {policy: {}}


def test_metrics(server):
    """Requests that a GPU has executed have its UUID."""
    told(server, "threads")
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    assert 'nv_inference_exec_count{gpu_uuid="GPU-b",model="threads",version="1"}' in text
    assert 'nv_inference_exec_count{model="threads",version="1"} 0' in text
    assert 'nv_inference_request_success{model="threads",version="1"} 0' in text
    assert 'nv_inference_exec_count{gpu_uuid="MIG-c",model="default",version="1"} 0' in text
    assert 'nv_inference_exec_count{model="on_cpu",version="1"}' in text


def test_restart(server, wait_until):
    """A process that is started again sees the same GPU."""
    before = server.stub("one_0_0").pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: any(stub.pid != before for stub in server.stubs("one_0_0")))
    wait_until(lambda: server.request("GET", "/v2/models/one/ready").status == 200)
    assert told(server, "one") == ("GPU", "0", "GPU-a")


def test_exchange_of_instances(server):
    """Instances stay on their GPUs, in their processes, when another GPU is added."""
    before = server.stub("growing_0_0").pid
    config = {"backend": "python", "input": TENSORS["IN"], "output": TENSORS["OUT"]}
    config |= {"instance_group": [{"kind": "KIND_GPU", "gpus": [1, 3]}]}
    with closing(server.client()) as client:
        client.load_model("growing", config=json.dumps(config))
    assert groups(server, "growing") == [("KIND_GPU", 1, [1, 3])]
    assert server.stub("growing_0_0").pid == before
    assert "'growing' version 1 has 1 new instances; 1 stay and 0 leave" in server.log


def test_pages(server):
    """The page of the models has the GPU of each instance, and why the server chose it."""
    document = json.loads(server.request("POST", "/page/watch", b"{}").body)
    versions = {each["name"]: each for each in document["versions"]}
    assert [(each["name"], each["gpu"]) for each in versions["default"]["instances"]] == [
        ("default_0", 2),
        ("default_1", 3),
        ("default_2", 1),
    ]
    assert versions["default"]["placement"].startswith("on GPU 2 (16.0 of 16.0 GiB free), GPU 3")
    assert "gpu" not in versions["on_cpu"]["instances"][0]
    assert versions["one"]["placement"] == ""
