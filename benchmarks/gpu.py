# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What it costs to hand tensors on a GPU from model to model, and from a client to a model, beyond the kernels.

    python benchmarks/gpu.py [--stand-in] [--mib 256] [--turns 30]

It needs torch and a GPU. `scripts/test-gpu` runs it, and puts its output into the report. `--stand-in` needs neither:
it runs all of this, to check it, and measures nothing. gpu_models.py has the models, and says what counts as a kernel.

- A hop is a call from one model to another one, with the tensor; the time of the called model's kernel is subtracted.
- Bytes to main memory are those of CUPTI, through torch.profiler, in both models of a hop. Beside them stands how much
  shared main memory the server has for both models afterwards: a tensor that went through it shows there.
- A client's request has its tensor in memory of this process, by a CUDA IPC handle.
- Contexts are the processes that NVML lists.
"""

import argparse
import base64
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gpu_client import ANSWER_S_MAX, Client, Failure
from gpu_contexts import context_holders
from gpu_models import WAYS, WAYS_WITHOUT_TORCH, write_models
from proctree import tree
from servers import Server, free_port

from pyruntime.utils.errors import PyruntimeError
from pyruntime.utils.gpu.inventory import STAND_IN, find_gpus, open_gpu

SMALLER_MIB = (1, 16)
# Calls that are not counted: the first ones open memory, and load kernels.
WARM_UP = 3
HOP_US_MAX, RATIO_MIN, CLIENT_US_MAX = 200, 20, 300
# As much as all models lease at a time stays with the broker.
KEPT = "--cuda-memory-pool-byte-size=0:4294967296"
MIB = 1 << 20


class Times(NamedTuple):
    """Of each call: all of it, and the kernel's part, in microseconds."""

    all: list[float]
    kernel: list[float]

    @property
    def beyond(self):
        return [whole - kernel for whole, kernel in zip(self.all, self.kernel, strict=True)]

    def cells(self):
        beyond = self.beyond
        found = (statistics.median(self.kernel), statistics.median(beyond), min(beyond), max(beyond))
        return " | ".join(f"{each:.0f}" for each in found)


class Goal(NamedTuple):
    """A line of the last table. `is_met` is None if that is not known."""

    goal: str
    found: str
    is_met: bool | None


def number(name, value):
    return {"name": name, "datatype": "INT64", "shape": [1], "data": [value]}


def hops(client, way, byte_size, turns, id=""):
    """The times of calls with tensors of so many bytes, and what the calling model recorded. Raises Failure."""
    inputs = [number("COUNT", byte_size // 4), number("TURNS", turns + WARM_UP)]
    outputs, told = client.infer(way, inputs, id)
    times = Times(*([ns / 1000 for ns in outputs[name][WARM_UP:]] for name in ("NS", "KERNEL_NS")))
    return times, json.loads(told["copies"])


def recorded(client, way, byte_size, turns):
    """What both models of a hop do on the GPU meanwhile. Raises Failure."""
    one = [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.0]}]
    client.infer(f"{way}_sum", one, "begin")
    _, caller = hops(client, way, byte_size, turns, "record")
    _, told = client.infer(f"{way}_sum", one, "end")
    return caller, json.loads(told["copies"])


def bytes_to_host(events):
    """The bytes that were copied to main memory; None without a kernel, which a profiler that works has seen."""
    if not any(kind == "kernel" for kind, _, _ in events):
        return None
    return sum(size for kind, name, size in events if kind == "gpu_memcpy" and "DtoH" in name)


def client_requests(client, model, byte_size, turns):
    """The times of requests whose tensor is in memory of this process on the GPU. Raises Failure and GpuError."""
    gpu, pointers = open_gpu(), []
    try:
        for value in (1, 2):  # the contents of the last request are no answer
            pointers.append(gpu.allocate(byte_size))
            gpu.write(pointers[-1], np.full(byte_size // 4, value, np.float32).view(np.uint8))
            handle = {"b64": base64.b64encode(gpu.export(pointers[-1])).decode()}
            registration = {"raw_handle": handle, "device_id": 0, "byte_size": byte_size}
            client.post(f"/v2/cudasharedmemory/region/benchmark_{value}/register", registration)
        found = [client_request(client, model, byte_size, turn % 2 + 1) for turn in range(turns + WARM_UP)]
        return Times(*map(list, zip(*found[WARM_UP:], strict=True)))
    finally:
        client.post("/v2/cudasharedmemory/unregister", {})
        for pointer in pointers:
            gpu.free(pointer)


def client_request(client, model, byte_size, value):
    """The time of a request and of its kernel."""
    place = {"shared_memory_region": f"benchmark_{value}", "shared_memory_byte_size": byte_size}
    inputs = [{"name": "X", "datatype": "FP32", "shape": [byte_size // 4], "parameters": place}]
    begin = time.perf_counter_ns()
    outputs, told = client.infer(model, inputs)
    spent = time.perf_counter_ns() - begin
    expected = value * byte_size // 4
    if told["was_cpu"] or abs(outputs["SUM"][0] - expected) > 1e-3 * expected:
        raise Failure(f"{model}: the input was in main memory, or was not what the client wrote")
    return spent / 1000, outputs["KERNEL_NS"][0] / 1000


def count_contexts(server):
    """How many contexts the processes of a server have: its own process, whose number this is, brokers, stubs, others.

    None if the driver does not tell.
    """
    family = tree(server)
    holders = context_holders(family)
    if holders is None:
        return None
    counts = dict.fromkeys(("host", "brokers", "stubs", "others"), 0)
    for pid in holders:
        title = Path(f"/proc/{pid}/cmdline").read_text()
        is_stub, is_broker = title.startswith("triton_python_backend_stub"), "broker of GPU" in title
        kind = "host" if pid == server else "brokers" if is_broker else "stubs" if is_stub else "others"
        counts[kind] += 1
    return counts


@contextmanager
def serving(repository):
    ports = free_port(), free_port(), free_port()
    options = "--http-port={http} --metrics-port={metrics} --allow-grpc=false --http-address=127.0.0.1"
    command = (
        f"{sys.executable} -m pyruntime serve --model-repository={{models}} {options} --allow-client-shm=true {KEPT}"
    )
    server = Server("server", command, ports, str(repository / "models"), "/v2/health/ready", str(repository))
    try:
        server.start(ANSWER_S_MAX)
        yield server
    except (SystemExit, Failure):
        print(Path(server.log).read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        server.stop()


class Run:
    """One run, whose failures are kept, so that one way that fails stops no other one."""

    def __init__(self, server, ways, byte_size, turns):
        self.server = server
        self.client = Client(server)
        self.ways = ways
        self.byte_size = byte_size
        self.turns = turns
        self.failures = []
        self.times = {}  # by their way, of the largest size

    def attempt(self, function, *arguments):
        """What a function finds; None if the server or the GPU refused that, which is printed."""
        try:
            return function(self.client, *arguments)
        except (Failure, PyruntimeError) as exc:
            self.failures.append(str(exc))
            print(f"\nFAILED: {exc}\n")
            return None

    def print_hops(self):
        print("| MiB | Way | kernel, median | beyond it, median | least | most |")
        print("| ---: | --- | ---: | ---: | ---: | ---: |")
        for byte_size in sorted({*(mib * MIB for mib in SMALLER_MIB if mib * MIB < self.byte_size), self.byte_size}):
            for way, words in self.ways.items():
                found = self.attempt(hops, way, byte_size, self.turns)
                if found:
                    self.times[way] = found[0]
                    print(f"| {byte_size // MIB} | {words} | {found[0].cells()} |")
        found = self.attempt(client_requests, "by_gpu_sum", self.byte_size, self.turns)
        if found:
            self.times["client"] = found
            print(f"| {self.byte_size // MIB} | client's memory on the GPU | {found.cells()} |")

    def goals(self):
        mib = self.byte_size // MIB
        of = {way: statistics.median(times.beyond) for way, times in self.times.items()}
        on_gpu = {way: words for way, words in self.ways.items() if way != "by_host"}
        for way, words in on_gpu.items():
            if way in of:
                goal = f"a hop of {mib} MiB takes at most {HOP_US_MAX} µs beyond the kernels: {words}"
                yield Goal(goal, f"{of[way]:.0f} µs", of[way] <= HOP_US_MAX)
        for way, words in on_gpu.items():
            if way in of and "by_host" in of:
                ratio = of["by_host"] / of[way]
                goal = f"{RATIO_MIN} times less than through main memory: {words}"
                yield Goal(goal, f"{ratio:.1f}", ratio >= RATIO_MIN)
        for way, words in self.ways.items():
            found = self.attempt(recorded, way, self.byte_size, self.turns)
            if found:
                yield self.copies_of(way, words, found)
        if "client" in of:
            goal = f"a client's request with {mib} MiB on the GPU takes at most {CLIENT_US_MAX} µs beyond the kernel"
            yield Goal(goal, f"{of['client']:.0f} µs", of["client"] <= CLIENT_US_MAX)
        yield self.contexts()

    def copies_of(self, way, words, events):
        copied = [bytes_to_host(each) for each in events]
        known = [str(each) if each is not None else "not known" for each in copied]
        shared = self.client.shared_bytes((way, f"{way}_sum"))
        found = f"caller {known[0]}, callee {known[1]}; {shared / MIB:.1f} MiB of shared main memory"
        if way == "by_host":  # what goes through main memory shows, or the others prove nothing
            sees_it = None not in copied and sum(copied) >= self.turns * self.byte_size
            return Goal(f"the profiler sees bytes to main memory: {words}", found, sees_it)
        is_met = None if None in copied else not sum(copied)
        return Goal(f"no bytes to main memory in {self.turns + WARM_UP} hops: {words}", found, is_met)

    def contexts(self):
        goal = "contexts: none of the host, one of the broker, one of each stub that uses the GPU"
        counts = count_contexts(self.server.proc.pid)
        if counts is None:
            return Goal(goal, "NVML does not list this machine's processes", None)
        # Each way has two models, of one process each.
        expected = {"host": 0, "brokers": 1, "stubs": 2 * len(self.ways), "others": 0}
        return Goal(goal, ", ".join(f"{kind} {count}" for kind, count in counts.items()), counts == expected)


def print_goals(goals, is_measured):
    print("\n| Goal | Found | Met |\n| --- | --- | --- |")
    for goal in goals:
        is_met = "not known" if goal.is_met is None else "yes" if goal.is_met else "**no**"
        print(f"| {goal.goal} | {goal.found} | {is_met if is_measured else 'stand-in'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=30, help="calls of each kind (default: %(default)s)")
    parser.add_argument("--mib", type=int, default=256, help="the size of the largest tensor (default: %(default)s)")
    parser.add_argument("--stand-in", action="store_true", help="check this program without a GPU")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        if arguments.stand_in:
            machine = repository / "gpus.json"
            machine.write_text(json.dumps({"gpus": [{"uuid": "GPU-1"}]}))
            os.environ[STAND_IN] = str(machine)
        elif find_spec("torch") is None:
            sys.exit("benchmarks/gpu.py needs torch, or --stand-in: nothing was measured")
        gpus = find_gpus()
        if not gpus:
            sys.exit("benchmarks/gpu.py needs a GPU, or --stand-in: nothing was measured")
        place = "the stand-in, which MEASURES NO GPU" if arguments.stand_in else f"GPU 0, {gpus[0].name}"
        print(f"Tensors handed over on {place}; microseconds of {arguments.turns} calls, after {WARM_UP} others\n")
        ways = WAYS_WITHOUT_TORCH if arguments.stand_in else WAYS
        write_models(repository / "models", ways, arguments.stand_in, arguments.mib * MIB)
        with serving(repository) as server:
            run = Run(server, ways, arguments.mib * MIB, arguments.turns)
            run.print_hops()
            print_goals(list(run.goals()), not arguments.stand_in)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
