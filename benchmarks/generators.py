# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The load generators: how each is called for a scenario, and what its output says."""

import json
import os
import re

import kserve

HERE = os.path.dirname(os.path.abspath(__file__))

# The requests of a scenario that varies them. It is a prime number.
VARIED = 1999


def command(sc, server, opts, scratch):
    """The generator of a scenario, as a command line."""
    make = wrk_args if sc.wrk else pygrpc_args if sc.pygrpc else perf_analyzer_args
    if sc.stream and sc.protocol == "http":
        make = generate_args
    return make(sc, server, opts, scratch)


def perf_analyzer_args(sc, server, opts, scratch):
    port = server.http if sc.protocol == "http" else server.grpc
    argv = [opts.perf_analyzer, "-m", sc.model, "-i", sc.protocol, "-u", f"127.0.0.1:{port}"]
    argv += ["--concurrency-range", str(sc.concurrency), "-p", str(int(opts.window * 1000))]
    argv += ["-r", "3", "-s", "999", "--percentile", "99"]
    if sc.vary:
        data = os.path.join(scratch, "vary.json")
        with open(data, "w") as f:
            json.dump({"data": [{"INPUT0": {"content": [1.0] * n, "shape": [n]}} for n in varied_sizes()]}, f)
        argv += ["--input-data", data]
    elif sc.bytes:
        argv += ["--shape", f"INPUT0:{sc.bytes // 4}"]
    if sc.shm:
        argv += ["--shared-memory", "system", "--output-shared-memory-size", str(max(sc.bytes, 1024))]
    if sc.stream:
        data = os.path.join(scratch, f"stream{sc.stream}.json")
        request = {
            "COUNT": {"content": [sc.stream], "shape": [1]},
            "VALUE": {"content": [1.0, 2.0, 3.0, 4.0], "shape": [4]},
        }
        with open(data, "w") as f:
            json.dump({"data": [request]}, f)
        argv += ["--streaming", "--input-data", data]
    if sc.is_async:
        argv += ["-a"]
    return argv


def varied_sizes():
    """The numbers of elements of varied requests, each once, so that neighbours differ much."""
    return [i * 977 % VARIED + 1 for i in range(VARIED)]


# What a wrk script does with the bodies in files, one after the other. Each has its own head.
VARY = """
local requests, number = {}, 0
function init()
  for line in io.lines(%s) do
    local path, head = line:match("^(%%S+) (%%d+)$")
    local file = io.open(path, "rb")
    local headers = {["Inference-Header-Content-Length"] = head}
    requests[#requests + 1] = wrk.format("POST", nil, headers, file:read("*a"))
    file:close()
  end
end
function request()
  number = number %% #requests + 1
  return requests[number]
end
"""


def write_varied(script, scratch):
    """A script for wrk with another shape in each request, and the bodies that it reads."""
    index = os.path.join(scratch, "vary.txt")
    with open(index, "w") as lines:
        for n in varied_sizes():
            body, headers = kserve.request([("INPUT0", [1.0] * n)], as_json=False)
            path = os.path.join(scratch, f"vary-{n}.bin")
            with open(path, "wb") as f:
                f.write(body)
            lines.write(f"{path} {headers['Inference-Header-Content-Length']}\n")
    with open(script, "w") as f:
        f.write(VARY % json.dumps(index))


def wrk_args(sc, server, opts, scratch):
    override = opts.post.get(server.name)
    if override:
        path, content_type, body_file = override
        headers = {"Content-Type": content_type}
    else:
        path = f"/v2/models/{sc.model}/infer"
        if sc.bytes:
            inputs = [("INPUT0", [1.0] * (sc.bytes // 4))]
        else:
            inputs = [("INPUT0", [float(i) for i in range(16)]), ("INPUT1", [1.0] * 16)]
        body, headers = kserve.request(inputs, as_json=sc.json)
        body_file = os.path.join(scratch, f"body-{sc.model}-{sc.bytes}-{int(sc.json)}.bin")
        with open(body_file, "wb") as f:
            f.write(body)
    script = os.path.join(scratch, f"wrk-{server.name}-{sc.model}-{sc.bytes}-{int(sc.json)}{int(sc.vary)}.lua")
    if sc.vary:
        write_varied(script, scratch)
    else:
        with open(script, "w") as f:
            f.write('wrk.method = "POST"\n')
            f.write(f'local f = io.open({json.dumps(body_file)}, "rb")\nwrk.body = f:read("*a")\nf:close()\n')
            for k, v in headers.items():
                f.write(f"wrk.headers[{json.dumps(k)}] = {json.dumps(v)}\n")
    return [
        opts.wrk,
        "-t1",
        f"-c{sc.concurrency}",
        f"-d{max(1, round(opts.window * 3))}s",
        "--latency",
        "-s",
        script,
        f"http://127.0.0.1:{server.http}{path}",
    ]


def pygrpc_args(sc, server, opts, scratch):
    return [
        opts.python,
        os.path.join(HERE, "grpc_load.py"),
        f"127.0.0.1:{server.grpc}",
        sc.model,
        str(sc.concurrency),
        str(opts.window * 3),
    ]


def generate_args(sc, server, opts, scratch):
    script = os.path.join(HERE, "generate_load.py")
    target = f"127.0.0.1:{server.http}"
    return [opts.python, script, target, sc.model, str(sc.stream), str(sc.concurrency), str(opts.window * 3)]


UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def wrk_latency(label, text):
    m = re.search(rf"{label}\s+([\d.]+)(us|ms|s)", text)
    return float(m.group(1)) * UNITS[m.group(2)] if m else None


def number(pattern, text):
    m = re.search(pattern, text)
    return float(m.group(1)) if m else None


def read_wrk(code, text):
    """(figures or a dict with 'error', requests that were answered if it says so)."""
    r = {
        "rate": number(r"Requests/sec:\s+([\d.]+)", text),
        "p50": wrk_latency("50%", text),
        "p99": wrk_latency("99%", text),
    }
    bad = number(r"Non-2xx or 3xx responses: (\d+)", text) or 0
    if code or bad or r["rate"] is None:
        return {"error": f"wrk: exit {code}, {bad:.0f} bad answers: {text[-300:]}"}, None
    return r, number(r"(\d+) requests in", text)


def read_report(code, text):
    """As read_wrk; perf_analyzer's report, which our own generators write as well."""
    r = {
        "rate": number(r"\n\s*Throughput: ([\d.]+) infer/sec", text),
        "p50": number(r"p50 latency: (\d+) usec", text),
        "p99": number(r"p99 latency: (\d+) usec", text),
    }
    if code or r["rate"] is None:
        return {"error": f"client: exit {code}: {text[-300:]}"}, None
    responses = number(r"Response Throughput: ([\d.]+)", text)
    if responses:
        r["responses"] = responses
    return r, number(r"(\d+) requests in all", text)
