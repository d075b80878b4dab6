# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The load generators: how each is called for a scenario, and what its output says."""

import json
import os
import re

import conditions
import kserve
import payloads

HERE = os.path.dirname(os.path.abspath(__file__))


def command(sc, server, opts, scratch):
    """The generator of a scenario, as a command line."""
    make = wrk_args if sc.wrk else pygrpc_args if sc.pygrpc else perf_analyzer_args
    if sc.stream and sc.protocol == "http":
        make = generate_args
    return make(sc, server, opts, scratch)


def input_data(sc, scratch):
    """A file of a scenario's requests for perf_analyzer and grpc_load.py."""
    path = os.path.join(scratch, f"data-{sc.model}-{'vary' if sc.vary else sc.bytes}.json")
    if not os.path.exists(path):
        payloads.write_input_data(sc, path)
    return path


def perf_analyzer_args(sc, server, opts, scratch):
    target = f"127.0.0.1:{server.grpc}"
    if sc.protocol == "http":
        target = f"{'https://' if server.scheme == 'https' else ''}127.0.0.1:{server.http}"
    argv = [opts.perf_analyzer, "-m", sc.model, "-i", sc.protocol, "-u", target]
    argv += ["--concurrency-range", str(sc.concurrency), "-p", str(int(opts.window * 1000))]
    argv += ["-r", "3", "-s", "999", "--percentile", "99"]
    if sc.vary or sc.model == "texts":
        argv += ["--input-data", input_data(sc, scratch)]
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
    for name, value in conditions.headers_of(sc).items():
        argv += ["-H", f"{name}:{value}"]
    if sc.condition == "tls" and sc.protocol == "http":
        argv += ["--ssl-https-verify-peer", "0", "--ssl-https-verify-host", "0"]
    elif sc.condition == "tls":
        argv += ["--ssl-grpc-use-ssl", "true"]
        argv += ["--ssl-grpc-root-certifications-file", conditions.certificate(scratch)]
    return argv


# What a wrk script does with the bodies in a file, one after the other. A line of the other file has the length of a
# body and that of its head, which is 0 where there is none.
VARY = """
local requests, number = {}, 0
function init()
  local bodies = io.open(%s, "rb")
  for line in io.lines(%s) do
    local length, head = line:match("^(%%d+) (%%d+)$")
    local headers = {}
    for name, value in pairs(wrk.headers) do headers[name] = value end
    if head ~= "0" then headers["Inference-Header-Content-Length"] = head end
    requests[#requests + 1] = wrk.format("POST", nil, headers, bodies:read(tonumber(length)))
  end
  bodies:close()
end
function request()
  number = number %% #requests + 1
  return requests[number]
end
"""


def write_varied(sc, script, scratch):
    """What a script for wrk needs to send another request each time, and the files that it reads."""
    stem = os.path.join(scratch, f"bodies-{sc.model}-{int(sc.json)}")
    with open(stem + ".bin", "wb") as bodies, open(stem + ".txt", "w") as lines:
        for inputs in payloads.requests_of(sc):
            body, headers = kserve.request(inputs, as_json=sc.json)
            bodies.write(body)
            lines.write(f"{len(body)} {headers.get('Inference-Header-Content-Length', 0)}\n")
    script.write(VARY % (json.dumps(stem + ".bin"), json.dumps(stem + ".txt")))


def write_repeated(sc, script, scratch):
    """What a script for wrk needs to repeat one request."""
    body, headers = kserve.request(payloads.requests_of(sc)[0], as_json=sc.json)
    body_file = os.path.join(scratch, f"body-{sc.model}-{sc.bytes}-{int(sc.json)}.bin")
    with open(body_file, "wb") as f:
        f.write(body)
    write_constant(body_file, headers, script)


def write_constant(body_file, headers, script):
    script.write(f'local f = io.open({json.dumps(body_file)}, "rb")\nwrk.body = f:read("*a")\nf:close()\n')
    write_headers(headers, script)


def write_headers(headers, script):
    for k, v in headers.items():
        script.write(f"wrk.headers[{json.dumps(k)}] = {json.dumps(v)}\n")


def wrk_args(sc, server, opts, scratch):
    override = opts.post.get(server.name)
    path = override[0] if override else f"/v2/models/{sc.model}/infer"
    name = f"wrk-{server.name}-{sc.model}-{sc.bytes}-{int(sc.json)}{int(sc.vary)}{sc.condition}.lua"
    with open(os.path.join(scratch, name), "w") as script:
        script.write('wrk.method = "POST"\n')
        write_headers(conditions.headers_of(sc), script)
        if override:
            write_constant(override[2], {"Content-Type": override[1]}, script)
        else:
            (write_varied if sc.vary else write_repeated)(sc, script, scratch)
    return [
        opts.wrk,
        "-t1",
        f"-c{sc.concurrency}",
        f"-d{max(1, round(opts.window * 3))}s",
        "--latency",
        "-s",
        script.name,
        f"{server.scheme}://127.0.0.1:{server.http}{path}",
    ]


def pygrpc_args(sc, server, opts, scratch):
    argv = [opts.python, os.path.join(HERE, "grpc_load.py"), f"127.0.0.1:{server.grpc}", sc.model]
    argv += [str(sc.concurrency), str(opts.window * 3), input_data(sc, scratch)]
    argv += [f"--metadata={name}={value}" for name, value in conditions.headers_of(sc).items()]
    if sc.condition == "tls":
        argv += [f"--root-cert={conditions.certificate(scratch)}"]
    return argv


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
