# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests per second of models of ONNX Runtime and PyTorch: a bare loop of the framework, pyruntime, and FastAPI.

    pip install onnx onnxruntime torch fastapi uvicorn; apt-get install wrk
    python benchmarks/frameworks.py --json frameworks.json

For each model the three take turns on the same cores; the table has the medians, and ratios of one round each:

- *loop*: the framework itself, in one process, with batches of the size that pyruntime made of the same load on
  average, as fast as it can. The goal is 0.85 of it.
- *FastAPI*: what people write by hand: one request at a time, by the same session, JSON in and out; for images and
  texts as well. The goal is twice as much.

The client is wrk, on the same cores. The smaller a model is, the more of the time is that of requests: `wide` models
have two layers of 2048 in place of one of 256.
"""

import argparse
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
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


def loop_rate(kind, path, rows, seconds):
    """Rows per second of the bare loop, with batches of so many rows."""
    call, batch = load(kind, path), np.concatenate([row_of(kind)] * max(1, round(rows)))
    call(batch)
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        call(batch)
        count += len(batch)
    return count / (now - start)


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
    """Answered requests per second, with one request in flight on each connection."""
    (folder / "body").write_bytes(body)
    lines = ['wrk.method = "POST"', f"local file = io.open({json.dumps(str(folder / 'body'))}, 'rb')"]
    lines += ['wrk.body = file:read("*a")', "file:close()"]
    lines += [f"wrk.headers[{json.dumps(key)}] = {json.dumps(value)}" for key, value in headers.items()]
    (folder / "load.lua").write_text("\n".join(lines))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(folder / "load.lua"), url]
    done = subprocess.run(command, capture_output=True, text=True)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if done.returncode or rate is None or "Non-2xx" in done.stdout:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return float(rate.group(1))


def batch_of(port, before):
    """The rows of a batch, on average, since `before`; and the counts to go on from."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/m/stats") as response:
        row = json.load(response)["model_stats"][0]
    counts = row["inference_count"], row["execution_count"]
    inferences, executions = (now - then for now, then in zip(counts, before))
    return inferences / max(1, executions), counts


def tensors_of(kind):
    row = row_of(kind)
    datatype = "TYPE_STRING" if row.dtype == object else "TYPE_FP32"
    outputs = "2" if kind.endswith("texts") else "8" if kind.endswith("image") else "10"
    name, made = ("input", "OUTPUT__0") if is_torch(kind) else ("x", "y")
    dims = ", ".join(map(str, row.shape[1:]))
    return name, TENSOR.format("input", name, datatype, dims) + TENSOR.format("output", made, datatype, outputs)


def measure(kind, connections, rounds, seconds, work):
    """The medians of all rounds, and of the ratios of each round."""
    folder = work / f"{kind.replace(' ', '_')}_{connections}"
    version = folder / "models" / "m" / "1"
    version.mkdir(parents=True)
    path = in_process(write_model, kind, version)
    name, tensors = tensors_of(kind)
    config = CONFIG.format(backend="pytorch" if is_torch(kind) else "onnxruntime", batch=BATCH_MAX, tensors=tensors)
    (version.parent / "config.pbtxt").write_text(config)
    (folder / "app.py").write_text(APP.format(here=str(Path(__file__).parent), kind=kind, path=str(path)))
    row = row_of(kind)
    headers, body = request_of(name, row)
    document = json.dumps({"data": row.tolist()}).encode()
    ports = [free_port() for _ in range(3)]
    served = [f"--{each}-port={port}" for each, port in zip(("http", "grpc", "metrics"), ports)]
    ours = [sys.executable, "-m", "pyruntime", "serve", str(folder / "models"), *served]
    port = free_port()
    theirs = [sys.executable, "-m", "uvicorn", "app:app", f"--port={port}", "--log-level=warning"]
    theirs += [f"--app-dir={folder}"]
    found = []
    with (
        serving(ours, ports[0], "/v2/health/ready", folder / "ours.log"),
        serving(theirs, port, "/docs", folder / "theirs.log"),
    ):
        for _ in range(rounds):
            _, before = batch_of(ports[0], (0, 0))
            url = f"http://127.0.0.1:{ports[0]}/v2/models/m/infer"
            mine = client_rate(url, headers, body, connections, seconds, folder)
            rows, _ = batch_of(ports[0], before)
            json_headers = {"Content-Type": "application/json"}
            other = client_rate(f"http://127.0.0.1:{port}/infer", json_headers, document, connections, seconds, folder)
            bare = in_process(loop_rate, kind, str(path), rows, seconds)
            found.append({"pyruntime": mine, "rows": rows, "fastapi": other, "loop": bare})
            found[-1] |= {"to_loop": mine / bare, "to_fastapi": mine / other}
    return {key: statistics.median(each[key] for each in found) for key in found[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--connections", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each of the three is measured in a round")
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    results = {}
    print("| Model | In flight | Rows a batch | pyruntime, requests/s | of the loop | of FastAPI |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as work:
        for kind in options.kinds:
            for connections in options.connections:
                row = measure(kind, connections, options.rounds, options.seconds, Path(work))
                results[f"{kind}, {connections}"] = row
                print(
                    f"| {kind} | {connections} | {row['rows']:.1f} | {row['pyruntime']:.0f} | "
                    f"{row['to_loop']:.2f} | {row['to_fastapi']:.2f} |",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
