# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances on GPUs, on a machine that has them only by the stand-in: what servers and processes know of them."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest

from .harness.models import parameters

GIB = 1 << 30
MACHINE = {
    "gpus": [
        {"uuid": "GPU-old", "compute_capability": [5, 2]},
        {"uuid": "GPU-a", "used_bytes": 12 * GIB},
        {"uuid": "GPU-b"},
        {"uuid": "GPU-c", "used_bytes": 8 * GIB},
        {"uuid": "GPU-full", "used_bytes": 15 * GIB},
    ]
}
DIVIDED = {"gpus": [{"uuid": "GPU-a"}, {"uuid": "MIG-b", "is_slice": True}, {"uuid": "MIG-c", "is_slice": True}]}
ONE_SLICE = {"gpus": [{"uuid": "MIG-b", "is_slice": True}]}
# Answers with what it was told, and with what CUDA would see. `used` are the GPUs that a model of this habit would use.
WHO = """
from pyruntime.utils.gpu.inventory import find_gpus

def uuids():
    return [gpu.uuid for gpu in find_gpus()]

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.device = int(args["model_instance_device_id"])
        self.used = [uuids()[self.device]]

    def execute(self, requests):
        told = {
            "pid": str(os.getpid()),
            "kind": self.args["model_instance_kind"],
            "device": self.args["model_instance_device_id"],
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "-"),
            "order": os.environ["CUDA_DEVICE_ORDER"],
            "used": " ".join(self.used),
        }
        array = np.array([1], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], parameters=told) for _ in requests]
"""


def habit(code):
    """A model that does something else with its number."""
    return WHO.replace("self.used = [uuids()[self.device]]", code)


# Restricts itself, as Triton's backend of vLLM does.
STUBBORN = habit('os.environ["CUDA_VISIBLE_DEVICES"] = str(self.device); self.used = uuids()')
# What models that were written for Triton do with the number of their GPU, and what each uses on GPU 2.
HABITS = {
    "by_number": (WHO, "GPU-b"),
    "no_number": (habit("self.used = uuids()[:1]"), "GPU-old"),
    "takes_all": (habit("self.used = uuids()"), "GPU-old GPU-a GPU-b GPU-c GPU-full"),
    "two_of_them": (habit("self.used = uuids()[self.device : self.device + 2]"), "GPU-b GPU-c"),
    "restricts_itself": (STUBBORN, "GPU-b"),
    "has_a_port": (habit("self.used = [str(29500 + self.device)]"), "29502"),
    "hides_all": (habit('os.environ["CUDA_VISIBLE_DEVICES"] = "-1"; self.used = uuids()'), ""),
}
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
    "growing": "instance_group { gpus: [ 3 ] }",
    "on_cpu": "instance_group { kind: KIND_CPU }",
    "itself": "instance_group { kind: KIND_MODEL }",
    "own": "instance_group { kind: KIND_GPU gpus: [ 2 ] }" + parameters(VISIBLE_GPUS="own"),
    "own_first": "instance_group { kind: KIND_GPU gpus: [ 1 ] }" + parameters(VISIBLE_GPUS="own"),
    "threads": "instance_group { count: 2 gpus: [ 2 ] }" + parameters(INSTANCE_MODE="thread"),
    "too_old": "instance_group { kind: KIND_GPU gpus: [ 0 ] }",
    "confused": "instance_group { kind: KIND_MODEL gpus: [ 1 ] }",
    "full": "instance_group { kind: KIND_GPU gpus: [ 2, 4 ] }",
    "stubborn": "instance_group { kind: KIND_GPU gpus: [ 2 ] }" + parameters(VISIBLE_GPUS="own"),
    **{name: "instance_group { kind: KIND_GPU gpus: [ 2 ] }" for name in HABITS},
}
CODE = {"stubborn": STUBBORN, **{name: code for name, (code, _) in HABITS.items()}}

# Models of C++ backends, in the server's process and in processes of their own.
NATIVE = {
    "native": "instance_group { kind: KIND_GPU gpus: [ 2 ] }",
    "isolated": "instance_group { kind: KIND_GPU gpus: [ 2 ] }" + parameters(EXECUTION_MODE="process"),
    "isolated_own": "instance_group { kind: KIND_GPU gpus: [ 2 ] }"
    + parameters(EXECUTION_MODE="process", VISIBLE_GPUS="own"),
}
QUESTION = """
backend: "told"
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def serving_on(serving, write_model, tmp_path_factory, install_backends):
    """`serving_on(machine, python, native, *options, visible=None)`: a server with these models, some of which fail."""

    @contextmanager
    def serve(machine, python, native, *options, visible=None):
        repository = tmp_path_factory.mktemp("gpus")
        for name, more in python.items():
            write_model(repository, name, CODE.get(name, WHO), CONFIG, more)
        for name, more in native.items():
            write_model(repository, name, None, QUESTION, more)
        path = tmp_path_factory.mktemp("machine") / "gpus.json"
        path.write_text(json.dumps(machine))
        variables = "-u", "CUDA_VISIBLE_DEVICES", "-u", "CUDA_DEVICE_ORDER", f"PYRUNTIME_GPU_STAND_IN={path}"
        if visible is not None:
            variables += (f"CUDA_VISIBLE_DEVICES={visible}",)
        options = ["--exit-on-error=false", "--strict-readiness=false", *options]
        options += [f"--backend-directory={install_backends('told')}"]
        with serving(repository, *options, wrapper=("env", *variables)) as server:
            yield server

    return serve


@pytest.fixture(scope="module")
def server(serving_on):
    """One server of all models, on a machine with the GPUs of MACHINE. It also serves the models that load."""
    explicit = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in (*MODELS, *NATIVE))]
    with serving_on(MACHINE, MODELS, NATIVE, *explicit, "--model-load-gpu-limit=4:0.9") as server:
        yield server


@pytest.fixture(scope="module")
def divided(serving_on):
    """A server on a machine with slices."""
    on_slice = "instance_group { kind: KIND_GPU gpus: [ 2 ] }"
    python = {
        "slice": on_slice,
        "whole": "instance_group { kind: KIND_GPU gpus: [ 0 ] }",
        "all": on_slice + parameters(VISIBLE_GPUS="all"),
        "stubborn": on_slice,
        "hides_all": on_slice,
    }
    native = {"isolated": on_slice + parameters(EXECUTION_MODE="process"), "native": on_slice}
    with serving_on(DIVIDED, python, native) as server:
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
        ("one", ("GPU", "1", "-")),
        ("on_cpu", ("CPU", "0", "-")),
        ("itself", ("MODEL", "0", "-")),
        ("own", ("GPU", "0", "GPU-b")),
        ("threads", ("GPU", "2", "-")),
    ],
)
def test_what_an_instance_sees(server, name, expected):
    """What the server sees, with its numbers, as in Triton; or its own GPU as number 0, by the UUID."""
    assert told(server, name) == expected


@pytest.mark.parametrize("name", HABITS)
def test_models_of_every_habit_use_the_gpus_that_they_use_in_triton(server, name):
    """An instance is on GPU 2."""
    parameters = server.infer(name, ONE).get_response()["parameters"]
    assert (parameters["device"], parameters["used"]) == ("2", HABITS[name][1])
    assert "Such numbers count the GPUs of the machine" not in server.log


def test_two_instances_that_restrict_themselves_are_on_two_gpus(serving_on):
    """As those of Triton's backend of vLLM. The server may hide GPUs at the end of the machine."""
    group = {"restricts_itself": "instance_group { kind: KIND_GPU gpus: [ 1, 2 ] }"}
    with serving_on(MACHINE, group, {}, visible="0,1,2") as server:
        used = {}
        with ThreadPoolExecutor(2) as threads:
            while len(used) < 2:
                for result in threads.map(lambda _: server.infer("restricts_itself", ONE), range(8)):
                    found = result.get_response()["parameters"]
                    used[found["device"]] = found["used"]
        assert used == {"1": "GPU-a", "2": "GPU-b"}


def test_a_model_whose_number_is_another_gpu_of_the_machine_is_warned(serving_on):
    """As in Triton it uses a GPU that the server does not: the numbers of the variable are those of the machine."""
    group = {"restricts_itself": "instance_group { kind: KIND_GPU gpus: [ 0 ] }"}
    with serving_on(MACHINE, group, {}, visible="2,3") as server:
        assert told(server, "restricts_itself") == ("GPU", "0", "0")
        assert (
            "the model has set CUDA_VISIBLE_DEVICES to '0', and its process does not see GPU 0 (GPU-b), which its "
            "instance is on. Such numbers count the GPUs of the machine, and the server's CUDA_VISIBLE_DEVICES is 2,3"
        ) in server.log


def test_own_gpus_by_the_option_of_the_server(serving_on):
    """A model that says something else has the last word."""
    groups = {
        "one": "instance_group { kind: KIND_GPU gpus: [ 1 ] }",
        "all": "instance_group { kind: KIND_GPU gpus: [ 1 ] }" + parameters(VISIBLE_GPUS="all"),
    }
    with serving_on(MACHINE, groups, {}, "--visible-gpus=own") as server:
        assert told(server, "one") == ("GPU", "0", "GPU-a")
        assert told(server, "all") == ("GPU", "1", "-")


@pytest.mark.parametrize(("name", "expected"), [("slice", ("GPU", "0", "MIG-c")), ("whole", ("GPU", "0", "GPU-a"))])
def test_where_a_gpu_is_a_slice_an_instance_sees_its_own_only(divided, name, expected):
    """CUDA shows a process one slice, and no whole GPU beside it."""
    assert told(divided, name) == expected
    assert (
        "a process sees one slice of a GPU at most, so the process of an instance sees its own GPU only" in divided.log
    )


def test_a_model_may_hide_a_slice_from_itself(divided):
    """It computes on the CPU."""
    assert told(divided, "hides_all") == ("GPU", "0", "-1")


@pytest.mark.parametrize("name", ["by_number", "restricts_itself"])
def test_one_slice_alone_is_seen_as_in_triton(serving_on, name):
    """It is the only GPU that a process can see, and has number 0 everywhere."""
    with serving_on(ONE_SLICE, {name: "instance_group { kind: KIND_GPU }"}, {}) as server:
        assert told(server, name)[:2] == ("GPU", "0")


def test_default(server):
    """A model that says nothing is on all GPUs with room, and answers from the emptiest; the log says why."""
    assert groups(server, "default") == [("KIND_GPU", 1, [2, 3, 1])]
    assert told(server, "default") == ("GPU", "2", "-")
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
            "stubborn",
            "Internal: the model has set CUDA_VISIBLE_DEVICES to '0', and its process does not see GPU 2 (GPU-b), "
            "which its instance is on. The server had set it to 'GPU-b', because VISIBLE_GPUS or --visible-gpus is "
            "'own', or because a GPU is a slice: the model must leave it as it is, and use GPU 0",
        ),
    ],
)
def test_refusals(server, name, reason):
    """Triton's words, but for what Triton cannot do either."""
    assert refusal(server, name) == reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("stubborn", "the model has set CUDA_VISIBLE_DEVICES to '0', and its process does not see GPU 2 (MIG-c)"),
        (
            "all",
            "Internal: model 'all' has the parameter VISIBLE_GPUS 'all', and a GPU of the server is a slice of one: a "
            "process sees one slice, and no GPU beside it, so that it must be 'own'",
        ),
        (
            "native",
            "Internal: instance 'native_0_0' of model 'native' is on GPU 2, a slice of a GPU that the server's process "
            "cannot use besides the first one: give the model the parameter EXECUTION_MODE 'process'",
        ),
    ],
)
def test_what_no_process_can_do_on_a_slice_is_refused(divided, name, reason):
    """The load fails, and says what to do."""
    assert reason in refusal(divided, name)


def refusal(server, name):
    """Why a model does not serve."""
    rows = {row["name"]: row for row in json.loads(server.request("POST", "/v2/repository/index", b"{}").body)}
    assert rows[name]["state"] == "UNAVAILABLE"
    return rows[name]["reason"]


@pytest.mark.parametrize(
    ("name", "instance", "policy"),
    [
        ("native", "native_0_0 GPU 2", "gpu_2"),
        ("isolated", "isolated_0_0 GPU 2", "gpu_2"),
        ("isolated_own", "isolated_own_0_0 GPU 0", "gpu_2"),
    ],
)
def test_native_backends(server, name, instance, policy):
    """They have the server's numbers, unless they see their own GPU only. The host policies are the operator's, and
    have his numbers."""
    assert ask(server, name, "instance") == instance
    assert json.loads(ask(server, name, "host_policy")) == {policy: {}}


def test_a_native_backend_on_a_slice(divided):
    """In a process of its own."""
    assert ask(divided, "isolated", "instance") == "isolated_0_0 GPU 0"
    assert json.loads(ask(divided, "isolated", "host_policy")) == {"gpu_2": {}}


def ask(server, name, question):
    """The answer of a native model."""
    result = server.infer(name, {"INPUT0": np.array([question], np.object_)})
    return result.as_numpy("OUTPUT0")[0].decode()


def test_metrics(server):
    """Requests that a GPU has executed have its UUID."""
    told(server, "threads")
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    assert 'nv_inference_exec_count{gpu_uuid="GPU-b",model="threads",version="1"}' in text
    assert 'nv_inference_exec_count{model="threads",version="1"} 0' in text
    assert 'nv_inference_request_success{model="threads",version="1"} 0' in text
    assert 'nv_inference_exec_count{gpu_uuid="GPU-c",model="default",version="1"} 0' in text
    assert 'nv_inference_exec_count{model="on_cpu",version="1"}' in text


def test_restart(server, wait_until):
    """A process that is started again sees the same GPU."""
    before = server.stub("own_first_0_0").pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: any(stub.pid != before for stub in server.stubs("own_first_0_0")))
    wait_until(lambda: server.request("GET", "/v2/models/own_first/ready").status == 200)
    assert told(server, "own_first") == ("GPU", "0", "GPU-a")


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
