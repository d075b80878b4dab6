# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances on the GPUs of this machine, by torch. On machines without a GPU test_gpu_instances.py has a stand-in."""

import re
from pathlib import Path

import numpy as np
import pytest

from pyruntime.utils.gpu.inventory import STAND_IN, find_gpus

pytestmark = pytest.mark.gpu

# Doubles its input on its device, and tells what it sees.
DOUBLE = """
import torch
from pyruntime.utils.gpu.inventory import seen_by_cuda

class TritonPythonModel:
    def initialize(self, args):
        torch.cuda.init()
        self.kind = args["model_instance_kind"]
        self.device = torch.device(f"cuda:{args['model_instance_device_id']}")

    def execute(self, requests):
        told = {
            "kind": self.kind,
            "count": torch.cuda.device_count(),
            "uuid": seen_by_cuda()[self.device.index],
            "total": torch.cuda.mem_get_info(self.device)[1],
        }
        responses = []
        for request in requests:
            doubled = torch.from_numpy(request.inputs()[0].as_numpy()).to(self.device) * 2
            output = pb_utils.Tensor("OUT", doubled.cpu().numpy())
            responses.append(pb_utils.InferenceResponse([output], parameters=told))
        return responses
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


@pytest.fixture(scope="module")
def gpus():
    """The GPUs of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(STAND_IN, raising=False)
        found = find_gpus()
    if not found:
        pytest.skip("no GPU")
    pytest.importorskip("torch", reason="torch is not installed")
    return found


@pytest.fixture(scope="module")
def server(gpus, serving, write_model, tmp_path_factory):
    """A server with a model on each GPU, `on_<number>`, and one that leaves it to the server, `anywhere`."""
    repository = tmp_path_factory.mktemp("gpus")
    write_model(repository, "anywhere", DOUBLE, CONFIG)
    for gpu in gpus:
        group = f"instance_group {{ kind: KIND_GPU gpus: [ {gpu.ordinal} ] }}"
        write_model(repository, f"on_{gpu.ordinal}", DOUBLE, CONFIG, group)
    with serving(repository, wrapper=("env", "-u", STAND_IN)) as server:
        yield server


def told(server, name):
    """The answer of a model and what it told."""
    result = server.infer(name, {"IN": np.array([1, 2.5], np.float32)})
    assert result.as_numpy("OUT").tolist() == [2, 5]
    return result.get_response()["parameters"]


def test_own_gpu(server, gpus):
    """Each model computes on its GPU. It sees all of them, or a slice alone."""
    count = 1 if any(gpu.is_slice for gpu in gpus) else len(gpus)
    for gpu in gpus:
        answer = told(server, f"on_{gpu.ordinal}")
        assert (answer["kind"], answer["count"], answer["uuid"]) == ("GPU", count, gpu.uuid)


def test_any_gpu(server, gpus):
    """A model that names no GPU is on one that the machine has."""
    assert told(server, "anywhere")["uuid"] in [gpu.uuid for gpu in gpus]


def test_slices(server, gpus):
    """A process sees one slice of a GPU that is divided, with the memory of the slice."""
    slices = [gpu for gpu in gpus if gpu.is_slice]
    if not slices:
        pytest.skip("no GPU of this machine is divided (MIG)")
    for each in slices:
        answer = told(server, f"on_{each.ordinal}")
        assert each.uuid.startswith("MIG-")
        assert (answer["count"], answer["uuid"]) == (1, each.uuid)
        assert answer["total"] == pytest.approx(each.total_bytes, rel=0.1)  # the driver keeps some


def metrics_page(server):
    return server.request("GET", "/metrics", port=server.metrics_port).body.decode()


def test_metrics(server, gpus, wait_until):
    """The page has each GPU by its UUID, a divided one as a whole, and the requests of the models there."""
    for gpu in gpus:
        told(server, f"on_{gpu.ordinal}")
    wait_until(lambda: "nv_gpu_memory_total_bytes{" in metrics_page(server))  # they are read beside requests
    page = metrics_page(server)
    found = {
        (family, uuid): float(value)
        for family, uuid, value in re.findall(r'^(nv_\w+)\{gpu_uuid="(GPU-[^"]+)"\} (\S+)$', page, re.MULTILINE)
    }
    total = {uuid: value for (family, uuid), value in found.items() if family == "nv_gpu_memory_total_bytes"}
    for gpu in gpus:
        if not gpu.is_slice:
            assert total[gpu.uuid] == gpu.total_bytes
        count = rf'^nv_inference_count\{{.*gpu_uuid="{gpu.uuid}",model="on_{gpu.ordinal}",.*\}} [1-9]'
        assert re.search(count, page, re.MULTILINE)
    for uuid, size in total.items():
        assert 0 <= found["nv_gpu_memory_used_bytes", uuid] <= size
        assert 0 <= found.get(("nv_gpu_utilization", uuid), 0) <= 1


def test_no_context_in_the_server(server):
    """The server has not loaded CUDA's driver, without which there is no context."""
    told(server, "anywhere")
    assert "libcuda.so" not in Path(f"/proc/{server.process.pid}/maps").read_text()
