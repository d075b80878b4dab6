# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The two modules that models import, where there is no stub: the same objects, in any process, with types."""

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import c_python_backend_utils
import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pyruntime.stub import c_pb_utils
from pyruntime.stub import pb_utils as stub_pb_utils
from pyruntime.stub.logs import LOGGER

ROOT = Path(__file__).resolve().parent.parent.parent

# Triton's own, as they are in a stub.
NAMES = [
    "serialize_byte_tensor",
    "deserialize_bytes_tensor",
    "get_input_tensor_by_name",
    "get_output_tensor_by_name",
    "get_input_config_by_name",
    "get_output_config_by_name",
    "using_decoupled_model_transaction_policy",
    "triton_to_numpy_type",
    "numpy_to_triton_type",
    "triton_string_to_numpy",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_MEMORY_CPU",
    "TRITON_STRING_TO_NUMPY",
    "ModelConfig",
    "TritonError",
    "TritonModelException",
    "Tensor",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "PreferredMemory",
    "MetricFamily",
    "load_model",
    "unload_model",
    "is_model_ready",
    "get_model_dir",
    "shared_memory",
]
C_NAMES = [
    "TritonError",
    "TritonModelException",
    "Tensor",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "ResponseIterator",
    "InferenceTrace",
    "Logger",
    "PreferredMemory",
    "MetricFamily",
    "Metric",
    "MetricKind",
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "MemoryType",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_MEMORY_CPU",
    "SharedMemory",
    "async_event_future_done_callback",
    "load_model",
    "unload_model",
    "is_model_ready",
    "get_model_dir",
]

MODEL = """
import asyncio
import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from c_python_backend_utils import InferenceResponseSender


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def initialize(self, args: dict[str, str]) -> None:
        self.config: dict[str, Any] = json.loads(args["model_config"])
        name = pb_utils.get_output_config_by_name(self.config, "OUT")["data_type"]
        self.dtype = pb_utils.triton_string_to_numpy(name)
        self.family = pb_utils.MetricFamily("hits", "Hits", pb_utils.MetricFamily.COUNTER)
        self.hits = self.family.Metric(labels={"model": args["model_name"]})
        self.senders: list[InferenceResponseSender] = []

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        responses = []
        for request in requests:
            self.hits.increment(1)
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if request.is_cancelled():
                error = pb_utils.TritonError("gone", pb_utils.TritonError.CANCELLED)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            output = pb_utils.Tensor("OUT", array.astype(self.dtype))
            responses.append(pb_utils.InferenceResponse([output], parameters={"n": 1}))
            pb_utils.Logger.log_info(f"answered {request.request_id()}")
        return responses

    def send(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        sender.send(pb_utils.InferenceResponse([]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        self.senders.append(sender)

    def helpers(self) -> bytes:
        encoded = pb_utils.serialize_byte_tensor(np.array([b"x"], dtype=np.object_))
        assert encoded
        return bytes(encoded)
"""
# Mistakes, each of which a checker is to see.
MISTAKES = """
import triton_python_backend_utils as pb_utils

pb_utils.TritonError("x", 3)
pb_utils.Logger.log_info(5)
pb_utils.MetricFamily("x", "y", "counter")
pb_utils.no_such_name
"""


def test_the_same_objects():
    """A facade has the same objects as the stub's module, and lists them in __all__."""
    for facade, module, names in ((pb_utils, stub_pb_utils, NAMES), (c_python_backend_utils, c_pb_utils, C_NAMES)):
        assert sorted(facade.__all__) == sorted(module.__all__) == sorted(names)
        assert all(getattr(facade, name) is getattr(module, name) for name in names)


def test_what_needs_no_server():
    """Most of it works anywhere."""
    tensor = pb_utils.Tensor("X", np.array([1, 2]))
    response = pb_utils.InferenceResponse([tensor])
    assert pb_utils.get_output_tensor_by_name(response, "X").as_numpy().tolist() == [1, 2]
    assert c_python_backend_utils.HISTOGRAM is pb_utils.MetricFamily.HISTOGRAM


@pytest.mark.parametrize(
    "call",
    [
        pb_utils.get_model_dir,
        pb_utils.shared_memory.free_memory,
        lambda: pb_utils.load_model("x"),
        lambda: pb_utils.InferenceRequest(model_name="x").exec(),
        lambda: pb_utils.MetricFamily("x", "", pb_utils.MetricFamily.COUNTER),
    ],
)
def test_what_needs_a_server(call):
    """Functions that need a server raise."""
    with pytest.raises(pb_utils.TritonModelException, match="this is not possible outside a model"):
        call()


def test_done_callback(caplog):
    """It logs how a future has failed, and nothing else."""

    async def end(exc):
        future = asyncio.get_running_loop().create_future()
        if exc is None:
            future.cancel()
        elif isinstance(exc, Exception):
            future.set_exception(exc)
        else:
            future.set_result(exc)
        c_python_backend_utils.async_event_future_done_callback(future)

    LOGGER.addHandler(caplog.handler)
    try:
        for outcome in (None, 5, ValueError("on purpose")):
            asyncio.run(end(outcome))
    finally:
        LOGGER.removeHandler(caplog.handler)
    (record,) = caplog.records
    assert record.message == "a coroutine of the model failed: ValueError('on purpose')"


@pytest.mark.processes
def test_in_a_spawned_child(tmp_path):
    """A process that a model spawns finds them, too."""
    script = tmp_path / "spawns.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import triton_python_backend_utils as pb_utils

            def work(number):
                return str(pb_utils.numpy_to_triton_type("float32") + number)

            if __name__ == "__main__":
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(pool.map(work, [1])[0])
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("12\n", "")


def mypy(folder, source):
    """Return the output of a strict mypy run over a user's model."""
    (folder / "model.py").write_text(source)
    command = [Path(sys.executable).with_name("mypy"), "--strict", "--no-error-summary", "model.py"]
    variables = {**os.environ, "MYPYPATH": str(ROOT / "typeview"), "MYPY_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True).stdout


@pytest.mark.processes
def test_types(tmp_path):
    """A model that is annotated passes a strict checker, and one that is wrong does not."""
    assert mypy(tmp_path, MODEL) == ""
    found = mypy(tmp_path, MISTAKES)
    assert found.count("error:") == 4
    assert all(f"model.py:{line}: error" in found for line in (4, 5, 6, 7))
