# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests per second of models of ONNX Runtime and PyTorch: a bare loop of the framework, pyruntime, and FastAPI.

    python3.11 -m venv build/frameworks-venv
    build/frameworks-venv/bin/pip install -e . onnx onnxruntime torch fastapi "uvicorn[standard]"; apt-get install wrk
    build/frameworks-venv/bin/python benchmarks/frameworks.py --json build/frameworks.json

It takes some five and a half minutes, prints the table for docs/explanation/performance.md, and wants a machine that
does nothing else. One request, which has one row, is repeated. For each model the three take turns on the same cores,
with as many threads of the framework as there are cores:

- *pyruntime* with dynamic batching and one instance. The client is wrk, which needs the same cores: the column
  `Client` is its part of their time.
- *loop*: the framework itself, in one process and without a client, as fast as it can, with batches of the sizes that
  pyruntime has just made, in the same proportions. The goal is 0.85 of its rows a second.
- *FastAPI*: what people write by hand: one request at a time, by the same session, JSON in and out, for images and
  texts as well. The goal is twice as much.

The table has the medians of all rounds; a ratio is the median of the ratios in each round. The smaller a model is, the
more of the time is that of requests: `wide` models have two layers of 2048 in place of one of 256.
"""

import argparse
import json
import multiprocessing
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np

WIDTH, WIDE = 256, 2048
IMAGE = 64
BATCH_MAX = 32
# How long a server may take to be ready, in seconds.
READY_S_MAX = 300.0
CONFIG = """
backend: "{backend}" max_batch_size: {batch} {tensors}
dynamic_batching {{ }} instance_group {{ kind: KIND_CPU count: 1 }}
"""
TENSOR = '{} {{ name: "{}" data_type: {} dims: [ {} ] }} '
APP = """
import sys

sys.path.insert(0, {here!r})
import numpy as np
from fastapi import FastAPI

import frameworks

call = frameworks.load({kind!r}, {path!r})
app = FastAPI()


@app.post("/infer")
def infer(document: dict):
    return {{"data": call(frameworks.array_of({kind!r}, document["data"])).tolist()}}
"""
SIZES = {
    "": f"MLP {WIDTH}-{WIDTH}-10",
    "wide": f"MLP {WIDE}-{WIDE}-{WIDE}-10",
    "texts": "identity, 2 texts",
    "image": f"convolution, 3 x {IMAGE} x {IMAGE}",
}
KINDS = ("onnx", "onnx wide", "onnx texts", "onnx image", "torch", "torch wide", "torch image")


def is_torch(kind):
    return kind.startswith("torch")


def width_of(kind):
    return WIDE if kind.endswith("wide") else WIDTH


def row_of(kind):
    """The input of one request."""
    random = np.random.default_rng(0)
    if kind.endswith("texts"):
        return np.array([["some text", "and another one"]], np.object_)
    shape = (1, 3, IMAGE, IMAGE) if kind.endswith("image") else (1, width_of(kind))
    return random.random(shape, np.float32)


def array_of(kind, data):
    """The input in a document of JSON."""
    return np.array(data, np.object_ if kind.endswith("texts") else np.float32)


def write_model(kind, folder):
    """Write the model file of a kind, and return its path."""
    if is_torch(kind):
        return _write_torch(kind, folder / "model.pt2")
    return _write_onnx(kind, folder / "model.onnx")


def _write_torch(kind, path):
    import torch

    torch.manual_seed(0)
    if kind.endswith("image"):
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    else:
        width = width_of(kind)
        layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)]
        if kind.endswith("wide"):
            layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), *layers]
    example = torch.from_numpy(np.concatenate([row_of(kind)] * 2))
    module = torch.nn.Sequential(*layers).eval()
    rows = torch.export.Dim("rows", max=BATCH_MAX * 4)
    torch.export.save(torch.export.export(module, (example,), dynamic_shapes=({0: rows},)), path)
    return path


def _write_onnx(kind, path):
    import onnx
    from onnx import TensorProto, helper

    random = np.random.default_rng(0)

    def weight(name, *shape):
        return onnx.numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)

    if kind.endswith("texts"):
        nodes = [helper.make_node("Identity", ["x"], ["y"])]
        given, made, weights = (TensorProto.STRING, ["rows", 2]), (TensorProto.STRING, ["rows", 2]), []
    elif kind.endswith("image"):
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("GlobalAveragePool", ["b"], ["c"]),
            helper.make_node("Flatten", ["c"], ["y"]),
        ]
        given, made = (TensorProto.FLOAT, ["rows", 3, IMAGE, IMAGE]), (TensorProto.FLOAT, ["rows", 8])
        weights = [weight("w", 8, 3, 3, 3)]
    else:
        width = width_of(kind)
        nodes, weights, at = [], [], "x"
        for layer in range(2 if kind.endswith("wide") else 1):
            nodes.append(helper.make_node("MatMul", [at, f"w{layer}"], [f"a{layer}"]))
            nodes.append(helper.make_node("Relu", [f"a{layer}"], [f"b{layer}"]))
            weights.append(weight(f"w{layer}", width, width))
            at = f"b{layer}"
        nodes.append(helper.make_node("MatMul", [at, "w"], ["y"]))
        weights.append(weight("w", width, 10))
        given, made = (TensorProto.FLOAT, ["rows", width]), (TensorProto.FLOAT, ["rows", 10])
    tensors = [[helper.make_tensor_value_info("x", *given)], [helper.make_tensor_value_info("y", *made)]]
    graph = helper.make_graph(nodes, "graph", *tensors, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def load(kind, path):
    """The framework's own function from a batch to its output, with as many threads as there are cores."""
    cores = len(os.sched_getaffinity(0))
    if is_torch(kind):
        import torch

        torch.set_num_threads(cores)
        module = torch.export.load(path).module()

        def call(array):
            with torch.inference_mode():
                return module(torch.from_numpy(array)).numpy()

        return call
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda array: session.run(None, {"x": array})[0]


class Loop:
    """The bare loop, in a process of its own: frameworks do not share threads, and loop while others wait."""

    def __init__(self, kind, path):
        self._pool = multiprocessing.get_context("spawn").Pool(1, _prepare_loop, (kind, path))

    def rate(self, sizes, seconds):
        """Rows per second, with batches of all these sizes, each as often as its number says."""
        return self._pool.apply(_loop_rate, (sizes, seconds))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pool.terminate()


def _prepare_loop(kind, path):
    global _call, _row
    _call, _row = load(kind, path), row_of(kind)


def _loop_rate(sizes, seconds):
    batches = [np.concatenate([_row] * size) for size in sizes]
    order = _spread(list(sizes.values()))
    for batch in batches:
        _call(batch)
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        batch = batches[next(order)]
        _call(batch)
        count += len(batch)
    return count / (now - start)


def _spread(numbers):
    """Indexes without end, each as often as its number says, and evenly so from the beginning."""
    done = [0.5] * len(numbers)
    while True:
        index = min(range(len(numbers)), key=lambda each: done[each] / numbers[each])
        done[index] += 1
        yield index


def in_process(function, *arguments):
    """The result of a function in a fresh process, so that frameworks do not share threads."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextmanager
def serving(command, port, path, log):
    """A server, ready: it answers requests for `path`."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        end = time.monotonic() + READY_S_MAX
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"{' '.join(command)} does not serve:\n{Path(log).read_text()}")
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def request_of(name, row):
    """The headers and the body of a request with one binary input."""
    data = row.tobytes()
    if row.dtype == object:
        texts = [each.encode() for each in row.ravel()]
        data = b"".join(len(each).to_bytes(4, "little") + each for each in texts)
    tensor = {
        "name": name,
        "shape": list(row.shape),
        "datatype": "BYTES" if row.dtype == object else "FP32",
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return {"Inference-Header-Content-Length": str(len(head))}, head + data


def client_rate(url, headers, body, connections, seconds, folder):
    """Answered requests per second, and the client's part of the cores. Each connection has one request in flight."""
    (folder / "body").write_bytes(body)
    lines = ['wrk.method = "POST"', f"local file = io.open({json.dumps(str(folder / 'body'))}, 'rb')"]
    lines += ['wrk.body = file:read("*a")', "file:close()"]
    lines += [f"wrk.headers[{json.dumps(key)}] = {json.dumps(value)}" for key, value in headers.items()]
    (folder / "load.lua").write_text("\n".join(lines))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(folder / "load.lua"), url]
    before = ended_children_s()
    done = subprocess.run(command, capture_output=True, text=True)
    used = (ended_children_s() - before) / seconds / len(os.sched_getaffinity(0))
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if done.returncode or rate is None or "Non-2xx" in done.stdout:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return max(float(rate.group(1)), 1 / seconds), used  # a slow server answers the first requests later


def ended_children_s():
    """The CPU time of all child processes that have ended; the servers have not."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def batches_of(port):
    """How many batches of each size there were."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/m/stats") as response:
        row = json.load(response)["model_stats"][0]
    return Counter({each["batch_size"]: each["compute_infer"]["count"] for each in row["batch_stats"]})


def tensors_of(kind):
    row = row_of(kind)
    datatype = "TYPE_STRING" if row.dtype == object else "TYPE_FP32"
    outputs = "2" if kind.endswith("texts") else "8" if kind.endswith("image") else "10"
    name, made = ("input", "OUTPUT__0") if is_torch(kind) else ("x", "y")
    dims = ", ".join(map(str, row.shape[1:]))
    return name, TENSOR.format("input", name, datatype, dims) + TENSOR.format("output", made, datatype, outputs)


def measure(kind, all_connections, rounds, seconds, work):
    """Yield a number of connections, the medians of all rounds, and those of the ratios of each round."""
    folder = work / kind.replace(" ", "_")
    version = folder / "models" / "m" / "1"
    version.mkdir(parents=True)
    path = in_process(write_model, kind, version)
    name, tensors = tensors_of(kind)
    config = CONFIG.format(backend="pytorch" if is_torch(kind) else "onnxruntime", batch=BATCH_MAX, tensors=tensors)
    (version.parent / "config.pbtxt").write_text(config)
    (folder / "app.py").write_text(APP.format(here=str(Path(__file__).parent), kind=kind, path=str(path)))
    row = row_of(kind)
    document = json.dumps({"data": row.tolist()}).encode()
    ports = [free_port() for _ in range(4)]
    served = [f"--{each}-port={port}" for each, port in zip(("http", "grpc", "metrics"), ports)]
    ours = [sys.executable, "-m", "pyruntime", "serve", str(folder / "models"), *served]
    theirs = [sys.executable, "-m", "uvicorn", "app:app", f"--port={ports[3]}", "--log-level=warning"]
    theirs += [f"--app-dir={folder}"]
    our_load = (f"http://127.0.0.1:{ports[0]}/v2/models/m/infer", *request_of(name, row))
    their_load = (f"http://127.0.0.1:{ports[3]}/infer", {"Content-Type": "application/json"}, document)
    with (
        serving(ours, ports[0], "/v2/health/ready", folder / "ours.log"),
        serving(theirs, ports[3], "/docs", folder / "theirs.log"),
        Loop(kind, str(path)) as loop,
    ):
        for load in (our_load, their_load):  # the first requests are slower
            client_rate(*load, all_connections[0], 1, folder)
        for connections in all_connections:
            found = []
            for _ in range(rounds):
                before = batches_of(ports[0])
                mine, client = client_rate(*our_load, connections, seconds, folder)
                sizes = batches_of(ports[0]) - before
                other, _ = client_rate(*their_load, connections, seconds, folder)
                bare = loop.rate(dict(sizes), seconds)
                rows = sum(size * count for size, count in sizes.items()) / sizes.total()
                found.append({"rows": rows, "loop": bare, "pyruntime": mine, "fastapi": other, "client": client})
                found[-1] |= {"to_loop": mine / bare, "to_fastapi": mine / other}
            yield connections, {key: statistics.median(each[key] for each in found) for key in found[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--connections", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="how long each of the three is measured in a round")
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    results = {}
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, batches of up to {BATCH_MAX} rows\n")
    print(
        "| Model | In flight | Rows a batch | Loop, rows/s | pyruntime, requests/s | FastAPI, requests/s "
        "| Of the loop | Of FastAPI | Client |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as work:
        for kind in options.kinds:
            framework, _, shape = kind.partition(" ")
            for connections, row in measure(kind, options.connections, options.rounds, options.seconds, Path(work)):
                results[f"{kind}, {connections}"] = row
                print(
                    f"| {framework}, {SIZES[shape]} | {connections} | {row['rows']:.1f} | {row['loop']:.0f} | "
                    f"{row['pyruntime']:.0f} | {row['fastapi']:.0f} | {row['to_loop']:.2f} | {row['to_fastapi']:.1f} | "
                    f"{row['client']:.0%} |",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
