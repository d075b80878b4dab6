# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The models of benchmarks/gpu.py: those that hold a tensor, and those that add up its elements.

Each pair hands the tensor over in another way. `Kernel` has the time of the sum on the GPU by CUDA's events: all other
time of a call is the server's and the framework's. So the copy of a tensor of torch to shared memory counts as a cost,
as does what torch needs to start the kernel; only the kernel itself does not.
"""

from pathlib import Path

STAND_IN_ARRAY = Path(__file__).parent.parent / "tests/e2e/harness/stand_in_array.py"
# The models that hold the tensor, and in which words it is handed over.
WAYS = {
    "by_host": "main memory",
    "by_gpu": "GPU, a tensor of torch",
    "by_pool": "GPU, `torch_allocator`",
}
# For a stand-in, or a CPU, which have no such allocator.
WAYS_WITHOUT_TORCH = {"by_host": "main memory", "by_gpu": "GPU"}

TORCH = """
import json, tempfile
from contextlib import nullcontext
import torch
from torch.profiler import ProfilerActivity, profile

def filled(count, value, pool):
    with torch.cuda.use_mem_pool(pool) if pool else nullcontext():
        return torch.full((count,), value, dtype=torch.float32, device="cuda")

def pool_of(byte_size):
    global allocator
    import pyruntime
    allocator = pyruntime.torch_allocator(byte_size)
    return torch.cuda.MemPool(allocator.allocator())

take = torch.from_dlpack
def to_host(array): return array.cpu().numpy()
def to_gpu(array): return torch.from_numpy(array).cuda()
def settle(): torch.cuda.synchronize()

def total(array):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    found = array.sum().reshape(1)
    end.record()
    end.synchronize()
    return found, int(begin.elapsed_time(end) * 1e6)

class Recorder:
    def begin(self):
        self.profile = profile(activities=[ProfilerActivity.CUDA])
        self.profile.start()

    def end(self):
        settle()
        self.profile.stop()
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            self.profile.export_chrome_trace(file.name)
            events = json.load(open(file.name))["traceEvents"]
        kinds = ("kernel", "gpu_memcpy")
        return [[e["cat"], e["name"], e.get("args", {}).get("bytes", 0)] for e in events if e.get("cat") in kinds]
"""
# It has no profiler; its kernel is one of numpy.
STAND_IN = """
def filled(count, value, pool): return make(np.full(count, value, np.float32))
def to_host(array): return back(array)
def to_gpu(array): return make(array)
def settle(): gpu_of(0).settle()  # the queue of the stand-in keeps arrays until then

def total(array):
    values = back(array)
    begin = time.perf_counter_ns()
    found = make(values.sum(dtype=np.float32).reshape(1))
    spent = time.perf_counter_ns() - begin
    settle()
    return found, spent

class Recorder:
    def begin(self): pass
    def end(self): return []
"""
IMPORTS = "import json\nimport time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
# Each turn has other values, so that the contents of the last one are no answer. Its answers are read when all is over:
# that copies them to main memory. The id of a request is "record" for one whose copies are counted.
CALLER = """
class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]
        self.pool = pool_of(POOL_BYTES) if self.name == "by_pool" else None

    def execute(self, requests):
        return [
            self.one(request.request_id() == "record", *(int(each.as_numpy()[0]) for each in request.inputs()))
            for request in requests
        ]

    def one(self, is_recorded, count, turns):
        recorder, copies, answers, spent, kernels = Recorder(), [], [], [], []
        if is_recorded:
            recorder.begin()
        for turn in range(turns):
            held = filled(count, turn % 5 + 1, self.pool)
            settle()
            begin = time.perf_counter_ns()
            if self.name == "by_host":
                given = pb_utils.Tensor("X", to_host(held))
            else:
                given = pb_utils.Tensor.from_dlpack("X", held)
            names = ["SUM", "KERNEL_NS"]
            name = f"{self.name}_sum"
            request = pb_utils.InferenceRequest(model_name=name, requested_output_names=names, inputs=[given])
            response = request.exec()
            spent.append(time.perf_counter_ns() - begin)
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            answers.append(pb_utils.get_output_tensor_by_name(response, "SUM"))
            kernels.append(pb_utils.get_output_tensor_by_name(response, "KERNEL_NS").as_numpy()[0])
            del held, given, request, response
        if is_recorded:
            copies = recorder.end()
        for turn, answer in enumerate(answers):
            expected = count * (turn % 5 + 1)
            assert abs(answer.as_numpy()[0] - expected) < 1e-3 * expected, "the sum is wrong"
        outputs = [pb_utils.Tensor("NS", np.array(spent)), pb_utils.Tensor("KERNEL_NS", np.array(kernels))]
        return pb_utils.InferenceResponse(outputs, parameters={"copies": json.dumps(copies)})
"""
# What it records is what it does from a request "begin" to a request "end".
SUM = """
class TritonPythonModel:
    def initialize(self, args):
        self.recorder = Recorder()

    def execute(self, requests):
        return [self.one(request.request_id(), request.inputs()[0]) for request in requests]

    def one(self, id, tensor):
        is_cpu, copies = tensor.is_cpu(), []
        if id == "end":
            copies = self.recorder.end()
        found, kernel_ns = total(to_gpu(tensor.as_numpy()) if is_cpu else take(tensor))
        sum = pb_utils.Tensor("SUM", to_host(found)) if is_cpu else pb_utils.Tensor.from_dlpack("SUM", found)
        if id == "begin":
            self.recorder.begin()
        told = {"copies": json.dumps(copies), "was_cpu": is_cpu}
        outputs = [sum, pb_utils.Tensor("KERNEL_NS", np.array([kernel_ns]))]
        return pb_utils.InferenceResponse(outputs, parameters=told)
"""
CALLER_CONFIG = """backend: "python"
input [ { name: "COUNT" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "TURNS" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "NS" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "KERNEL_NS" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
SUM_CONFIG = """backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "KERNEL_NS" data_type: TYPE_INT64 dims: [ 1 ] } ]
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
"""
ON_GPU = "instance_group { kind: KIND_GPU gpus: [ 0 ] }\n"


def write_models(repository, ways, is_stand_in, byte_size):
    """Write the models of these ways to hand over tensors of up to `byte_size` bytes."""
    framework = IMPORTS + (STAND_IN_ARRAY.read_text() + STAND_IN if is_stand_in else TORCH)
    # Two tensors at a time, and torch's divisions.
    caller = CALLER.replace("POOL_BYTES", str(2 * byte_size + (64 << 20)))
    for name in ways:
        for model, code, config in ((name, caller, CALLER_CONFIG), (f"{name}_sum", SUM, SUM_CONFIG)):
            folder = repository / model / "1"
            folder.mkdir(parents=True)
            (folder / "model.py").write_text(framework + code)
            (folder.parent / "config.pbtxt").write_text(config + ON_GPU)
