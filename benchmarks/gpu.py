# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The time of a tensor from one model on a GPU to another one, through main memory and on the GPU.

    python benchmarks/gpu.py

It needs torch. `scripts/test-gpu` runs it, and puts its output into the report. A model that holds a tensor on its GPU
calls another one, which adds up all elements on its own; the time is that of the call, with both kernels. Without a GPU
it runs on the CPU, to check the machinery, and says so.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from servers import free_port

from pyruntime.utils.gpu.inventory import find_gpus

# How long the server may take to be ready, in seconds: it imports torch.
READY_S_MAX = 300.0
SIZES_MIB = (1, 16, 256)
DEVICE = """
def device_of(args):
    return torch.device(f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu")

def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
"""
CALLER = """
class TritonPythonModel:
    def initialize(self, args):
        self.device = device_of(args)

    def execute(self, requests):
        return [self.one(*(tensor.as_numpy()[0] for tensor in request.inputs())) for request in requests]

    def one(self, count, turns):
        held = torch.ones(int(count), dtype=torch.float32, device=self.device)
        spent = np.empty(int(turns), np.int64)
        for turn in range(int(turns)):
            wait(self.device)
            begin = time.perf_counter_ns()
            inputs = [self.tensor(held)]
            request = pb_utils.InferenceRequest(model_name="callee", requested_output_names=["SUM"], inputs=inputs)
            response = request.exec()
            spent[turn] = time.perf_counter_ns() - begin
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
        assert pb_utils.get_output_tensor_by_name(response, "SUM").as_numpy()[0] == count
        return pb_utils.InferenceResponse([pb_utils.Tensor("NS", spent)])
"""
BY_HOST = """
    def tensor(self, held):
        return pb_utils.Tensor("X", held.cpu().numpy())
"""
BY_GPU = """
    def tensor(self, held):
        return pb_utils.Tensor.from_dlpack("X", held)
"""
CALLEE = """
class TritonPythonModel:
    def initialize(self, args):
        self.device = device_of(args)

    def execute(self, requests):
        return [self.one(request.inputs()[0]) for request in requests]

    def one(self, tensor):
        total = torch.from_dlpack(tensor).to(self.device).sum().cpu().numpy().reshape(1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)])
"""
IMPORTS = "import time\nimport numpy as np\nimport torch\nimport triton_python_backend_utils as pb_utils\n"
CALLER_CONFIG = """backend: "python"
input [ { name: "COUNT" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "TURNS" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "NS" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
CALLEE_CONFIG = """backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
"""


def write_models(repository, group):
    codes = {"by_host": CALLER + BY_HOST, "by_gpu": CALLER + BY_GPU, "callee": CALLEE}
    for name, code in codes.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(IMPORTS + DEVICE + textwrap.dedent(code))
        config = CALLEE_CONFIG if name == "callee" else CALLER_CONFIG
        (folder.parent / "config.pbtxt").write_text(config + group)


@contextmanager
def serving(repository):
    port = free_port()
    ports = [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false", "--http-address=127.0.0.1"]
    command = [sys.executable, "-m", "pyruntime", "serve", f"--model-repository={repository}", *ports]
    with open(repository / ".log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + READY_S_MAX
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server is not ready:\n{(repository / '.log').read_text()[-4000:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def is_ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def measure(port, model, count, turns):
    """The times of the calls in microseconds, or the reason why there are none."""
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1], "data": [value]}
        for name, value in (("COUNT", count), ("TURNS", turns))
    ]
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/{model}/infer", body)
    try:
        with urllib.request.urlopen(request, timeout=READY_S_MAX) as answer:
            return [ns / 1000 for ns in json.load(answer)["outputs"][0]["data"]]
    except urllib.error.HTTPError as exc:
        return json.load(exc)["error"].splitlines()[0].rpartition("message: ")[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=30)
    arguments = parser.parse_args()
    if find_spec("torch") is None:
        sys.exit("benchmarks/gpu.py needs torch: nothing was measured")
    gpus = find_gpus()
    place = f"GPU 0, {gpus[0].name}" if gpus else "the CPU: this checks the machinery, and measures no GPU"
    print(f"A tensor from one model to another on {place}; microseconds of {arguments.turns} calls, after 3 others\n")
    print("| MiB | Way | median | least | most |\n| ---: | --- | ---: | ---: | ---: |")
    group = "instance_group { kind: KIND_GPU gpus: [ 0 ] }" if gpus else "instance_group { kind: KIND_CPU }"
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder), group)
        with serving(Path(folder)) as port:
            for mib in SIZES_MIB:
                for model, way in (("by_host", "main memory"), ("by_gpu", "GPU")):
                    found = measure(port, model, (mib << 20) // 4, arguments.turns + 3)
                    if isinstance(found, str):
                        print(f"| {mib} | {way} | {found} | | |")
                    else:
                        of = found[3:]
                        print(f"| {mib} | {way} | {statistics.median(of):.0f} | {min(of):.0f} | {max(of):.0f} |")


if __name__ == "__main__":
    main()
