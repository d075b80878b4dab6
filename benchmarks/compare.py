#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the same load against several inference servers in turn and tabulates it.

    compare.py --server triton='DEST/bin/triton --model-repository={models}
                   --http-address=127.0.0.1 --http-port={http}
                   --grpc-address=127.0.0.1 --grpc-port={grpc}
                   --metrics-port={metrics}' \\
               --server ours='python -m ours --repo {models} --http {http} --grpc {grpc}' \\
               --perf-analyzer DEST/bin/perf_analyzer \\
               --scenario add_sub,http,c16 --scenario preset:quick --repeats 3

Every server is started once and left up (an idle server's own CPU burn is
printed first, so a busy poller shows); each scenario then runs A B A B ...
--restart starts and stops a server around each of its turns instead.

In a server command {http} {grpc} {metrics} become free ports (or those given
with --ports NAME=HTTP,GRPC,METRICS) and {models} becomes --models.

A scenario is comma separated: MODEL,PROTOCOL then any of
    cN         concurrency (default 1)
    bytes=N    size of the model's one FP32 input INPUT0, in bytes
    shm        tensors in system shared memory (perf_analyzer only)
    stream=N   decoupled model; N responses per request, over the gRPC stream or HTTP's generate_stream
    wrk        HTTP load from wrk rather than perf_analyzer (much lighter client)
    async      perf_analyzer's asynchronous client
    json       tensors as JSON rather than binary (http; implies wrk)
    pygrpc     gRPC load from grpc_load.py, for servers perf_analyzer refuses
PROTOCOL is http or grpc.

Work of other processes is measured too (column "others", % of one core, kernel
threads included).  --quiet PCT waits before a run until others use less than
that, and repeats a run during which they used more.

CPU per request is the CPU time of the server's whole process tree over the run,
divided by the requests it answered (its own statistics endpoint when it has one,
otherwise CPU rate over the client's throughput).  It is far steadier than
throughput on a small, shared machine, where client and server compete for cores.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import proctree

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT_LIMIT_S = 45

# perf_analyzer's synchronous HTTP client often hangs with 64 requests in flight,
# whatever the server; its asynchronous one does not.
HTTP64 = "http,c64,async"

PRESETS = {
    "quick": ["add_sub,http,c1", "add_sub,http,c16", "add_sub,grpc,c1", "add_sub,grpc,c16"],
    "small": [
        f"add_sub,{p}" for p in ("http,c1", "http,c4", "http,c16", HTTP64, "grpc,c1", "grpc,c4", "grpc,c16", "grpc,c64")
    ],
    "batch": [
        f"{m},{p}" for m in ("add_sub_batch", "add_sub_batch2") for p in ("http,c16", HTTP64, "grpc,c16", "grpc,c64")
    ],
    "payload": [
        f"identity,{p},c1,bytes={n}{s}"
        for p in ("http", "grpc")
        for n in (65536, 1048576, 16777216)
        for s in ("", ",shm")
    ],
    "stream": [f"decoupled_repeat,{p},c{c},stream={n}" for p in ("http", "grpc") for c in (1, 8) for n in (1, 100)],
    "wrk": [f"add_sub,http,c{c},wrk{j}" for c in (1, 16, 64) for j in ("", ",json")],
}
PRESETS["all"] = [s for k in ("small", "batch", "payload", "stream", "wrk") for s in PRESETS[k]]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def http_get(url, timeout=2.0):
    try:
        with urllib.request.urlopen(url, timeout=timeout) as r:
            return r.status, r.read()
    except urllib.error.HTTPError as e:
        return e.code, b""
    except OSError:
        return 0, b""


class Server:
    def __init__(self, name, command, ports, models, ready_path, log_dir):
        self.name = name
        self.http, self.grpc, self.metrics = ports
        self.command = (
            command.replace("{http}", str(self.http))
            .replace("{grpc}", str(self.grpc))
            .replace("{metrics}", str(self.metrics))
            .replace("{models}", models)
        )
        self.ready_path = ready_path
        self.log = os.path.join(log_dir, name + ".log")
        self.proc = None
        self.has_stats = True
        self.json_only = False

    def start(self, timeout):
        begin = time.monotonic()
        with open(self.log, "ab") as log:
            self.proc = subprocess.Popen(shlex.split(self.command), stdout=log, stderr=log, start_new_session=True)
        while time.monotonic() - begin < timeout:
            if self.proc.poll() is not None:
                raise SystemExit(f"{self.name} exited with {self.proc.returncode}; see {self.log}")
            if http_get(f"http://127.0.0.1:{self.http}{self.ready_path}")[0] == 200:
                return time.monotonic() - begin
            time.sleep(0.01)
        self.stop()
        raise SystemExit(f"{self.name} not ready after {timeout} s; see {self.log}")

    def stop(self):
        if self.proc is None:
            return
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGINT)
            try:
                self.proc.wait(20)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        with contextlib.suppress(ProcessLookupError):  # workers that outlive their parent
            os.killpg(self.proc.pid, signal.SIGKILL)
        self.proc = None

    def answered(self, model):
        """Requests this server says it has answered for a model, or None."""
        status, body = http_get(f"http://127.0.0.1:{self.http}/v2/models/{model}/stats")
        if status != 200:
            return None
        try:
            return sum(m["inference_stats"]["success"]["count"] for m in json.loads(body)["model_stats"])
        except (ValueError, KeyError):
            return None


class Scenario:
    def __init__(self, text):
        self.text = text
        parts = text.split(",")
        self.model, self.protocol = parts[0], parts[1]
        self.concurrency, self.bytes, self.stream = 1, 0, 0
        self.shm = self.wrk = self.is_async = self.json = self.pygrpc = False
        for p in parts[2:]:
            if re.fullmatch(r"c\d+", p):
                self.concurrency = int(p[1:])
            elif p.startswith("bytes="):
                self.bytes = int(p[6:])
            elif p.startswith("stream="):
                self.stream = int(p[7:])
            elif p == "shm":
                self.shm = True
            elif p == "wrk":
                self.wrk = True
            elif p == "async":
                self.is_async = True
            elif p == "json":
                self.json = self.wrk = True
            elif p == "pygrpc":
                self.pygrpc = True
            else:
                raise SystemExit(f"unknown word {p!r} in scenario {text!r}")


class CpuSampler(threading.Thread):
    """CPU rate of a process tree over the middle of a run."""

    def __init__(self, pid, skip):
        super().__init__(daemon=True)
        self.pid, self.skip, self.samples, self.done = pid, skip, [], threading.Event()

    def run(self):
        self.done.wait(self.skip)
        while not self.done.is_set():
            self.samples.append((time.monotonic(), sum(proctree.cpu_seconds(self.pid))))
            self.done.wait(0.25)

    def rate(self):
        self.done.set()
        self.join()
        s = self.samples[:-1]  # the last one may lie past the end of the load
        if len(s) < 2:
            return None
        return (s[-1][1] - s[0][1]) / (s[-1][0] - s[0][0])


def run_child(argv):
    """Run a client; its output, its CPU seconds, its wall seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out:
        proc = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
        # perf_analyzer now and then never ends (HTTP with 64 in flight, against any server)
        guard = threading.Timer(CLIENT_LIMIT_S, os.kill, (proc.pid, signal.SIGKILL))
        guard.start()
        try:
            _, status, usage = os.wait4(proc.pid, 0)
        finally:
            guard.cancel()
        proc.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
        out.seek(0)
        text = out.read().decode("utf-8", "replace")
    return proc.returncode, text, usage.ru_utime + usage.ru_stime, wall


def number(pattern, text):
    m = re.search(pattern, text)
    return float(m.group(1)) if m else None


def perf_analyzer_args(sc, server, opts, scratch):
    port = server.http if sc.protocol == "http" else server.grpc
    argv = [
        opts.perf_analyzer,
        "-m",
        sc.model,
        "-i",
        sc.protocol,
        "-u",
        f"127.0.0.1:{port}",
        "--concurrency-range",
        str(sc.concurrency),
        "-p",
        str(int(opts.window * 1000)),
        "-r",
        "3",
        "-s",
        "999",
        "--percentile",
        "99",
    ]
    if sc.bytes:
        argv += ["--shape", f"INPUT0:{sc.bytes // 4}"]
    if sc.shm:
        argv += ["--shared-memory", "system", "--output-shared-memory-size", str(max(sc.bytes, 1024))]
    if sc.stream:
        data = os.path.join(scratch, f"stream{sc.stream}.json")
        with open(data, "w") as f:
            json.dump(
                {
                    "data": [
                        {
                            "COUNT": {"content": [sc.stream], "shape": [1]},
                            "VALUE": {"content": [1.0, 2.0, 3.0, 4.0], "shape": [4]},
                        }
                    ]
                },
                f,
            )
        argv += ["--streaming", "--input-data", data]
    if sc.is_async:
        argv += ["-a"]
    return argv


def kserve_body(inputs):
    """A KServe v2 binary request: (body, length of its JSON part). inputs: [(name, floats)]."""
    head = {
        "inputs": [
            {"name": n, "shape": [len(v)], "datatype": "FP32", "parameters": {"binary_data_size": 4 * len(v)}}
            for n, v in inputs
        ],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(head, separators=(",", ":")).encode()
    return head + b"".join(struct.pack(f"<{len(v)}f", *v) for _, v in inputs), len(head)


def kserve_json(inputs):
    return json.dumps(
        {"inputs": [{"name": n, "shape": [len(v)], "datatype": "FP32", "data": v} for n, v in inputs]},
        separators=(",", ":"),
    ).encode()


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
        if sc.json:
            body, headers = kserve_json(inputs), {"Content-Type": "application/json"}
        else:
            body, head = kserve_body(inputs)
            headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(head)}
        body_file = os.path.join(scratch, f"body-{sc.model}-{sc.bytes}-{int(sc.json)}.bin")
        with open(body_file, "wb") as f:
            f.write(body)
    script = os.path.join(scratch, f"wrk-{server.name}-{sc.model}-{sc.bytes}-{int(sc.json)}.lua")
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


def tensors(headers, body):
    """{name: floats} of a KServe v2 answer, JSON or binary, or of a bare JSON object."""
    head = headers.get("Inference-Header-Content-Length")
    message = json.loads(body[: int(head)] if head else body)
    if "outputs" not in message:
        return message
    out, at = {}, int(head or 0)
    for o in message["outputs"]:
        size = o.get("parameters", {}).get("binary_data_size")
        if size is None:
            out[o["name"]] = o["data"]
        else:
            out[o["name"]] = list(struct.unpack(f"<{size // 4}f", body[at : at + size]))
            at += size
    return out


def verify(sc, server, opts):
    """None if the server answers the scenario's model with the right numbers, else what is wrong.

    A server that answers quickly and wrongly would otherwise win."""
    if sc.stream and sc.protocol == "http":
        return None  # its client looks at every stream
    if sc.stream:
        return verify_stream(sc, server, opts)
    if sc.bytes:
        x = [float(i % 1000) for i in range(sc.bytes // 4)]
        inputs, want = [("INPUT0", x)], {"OUTPUT0": x}
    else:
        a, b = [float(i) for i in range(16)], [1.0] * 16
        inputs = [("INPUT0", a), ("INPUT1", b)]
        want = {"OUTPUT0": [p + q for p, q in zip(a, b)], "OUTPUT1": [p - q for p, q in zip(a, b)]}
    override = opts.post.get(server.name)
    if override:
        path, headers = override[0], {"Content-Type": override[1]}
        with open(override[2], "rb") as f:
            body = f.read()
    else:
        path = f"/v2/models/{sc.model}/infer"
        if sc.model.startswith("add_sub_batch"):
            body = json.loads(kserve_json(inputs))
            for i in body["inputs"]:
                i["shape"] = [1] + i["shape"]
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        elif server.json_only or sc.json:
            body, headers = kserve_json(inputs), {"Content-Type": "application/json"}
        else:
            body, head = kserve_body(inputs)
            headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(head)}
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.http}{path}", data=body, headers=headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as r:
            got = tensors(r.headers, r.read())
    except urllib.error.HTTPError as e:
        return f"HTTP {e.code}: {e.read()[:200]!r}"
    except (OSError, ValueError, KeyError, struct.error) as e:
        return repr(e)
    for name, values in want.items():
        if [float(v) for v in got.get(name, [])] != values:
            return f"{name} is {str(got.get(name))[:80]}, not {str(values)[:80]}"
    return None


STREAM_CHECK = """
import queue, sys, numpy as np, tritonclient.grpc as g
c, q, n = g.InferenceServerClient(sys.argv[1]), queue.Queue(), int(sys.argv[3])
c.start_stream(lambda result, error: q.put((result, error)))
i = [g.InferInput("COUNT", [1], "INT32"), g.InferInput("VALUE", [4], "FP32")]
i[0].set_data_from_numpy(np.array([n], np.int32)); i[1].set_data_from_numpy(np.arange(4, dtype=np.float32))
c.async_stream_infer(sys.argv[2], i)
for k in range(n):
    r, e = q.get(timeout=30)
    if e or r.as_numpy("INDEX").tolist() != [k] or r.as_numpy("OUT").tolist() != [0.0, 1.0, 2.0, 3.0]:
        sys.exit(f"response {k}: {e or r.get_response()}")
c.stop_stream()
"""


def verify_stream(sc, server, opts):
    p = subprocess.run(
        [opts.python, "-c", STREAM_CHECK, f"127.0.0.1:{server.grpc}", sc.model, str(min(sc.stream, 5))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return None if p.returncode == 0 else p.stderr.strip()[-300:]


UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def wrk_latency(label, text):
    m = re.search(rf"{label}\s+([\d.]+)(us|ms|s)", text)
    return float(m.group(1)) * UNITS[m.group(2)] if m else None


def measure(sc, server, opts, scratch):
    """One run of one scenario against one server, or a dict with 'error'."""
    make = wrk_args if sc.wrk else pygrpc_args if sc.pygrpc else perf_analyzer_args
    if sc.stream and sc.protocol == "http":
        make = generate_args
    argv = make(sc, server, opts, scratch)
    counted = server.answered(sc.model) if server.has_stats else None
    own0, below0 = proctree.cpu_seconds(server.proc.pid)
    busy0, steal0, all0 = proctree.machine()
    sampler = CpuSampler(server.proc.pid, skip=1.0)
    sampler.start()
    code, text, client_cpu, wall = run_child(argv)
    rate = sampler.rate()
    own1, below1 = proctree.cpu_seconds(server.proc.pid)
    busy1, steal1, all1 = proctree.machine()
    if opts.verbose:
        print(text, file=sys.stderr)
    if sc.wrk:
        r = {
            "rate": number(r"Requests/sec:\s+([\d.]+)", text),
            "p50": wrk_latency("50%", text),
            "p99": wrk_latency("99%", text),
        }
        done = number(r"(\d+) requests in", text)
        bad = number(r"Non-2xx or 3xx responses: (\d+)", text) or 0
        if code or bad or r["rate"] is None:
            return {"error": f"wrk: exit {code}, {bad:.0f} bad answers: {text[-300:]}"}
    else:
        r = {
            "rate": number(r"\n\s*Throughput: ([\d.]+) infer/sec", text),
            "p50": number(r"p50 latency: (\d+) usec", text),
            "p99": number(r"p99 latency: (\d+) usec", text),
        }
        done = number(r"(\d+) requests in all", text)
        if code or r["rate"] is None:
            return {"error": f"client: exit {code}: {text[-300:]}"}
        responses = number(r"Response Throughput: ([\d.]+)", text)
        if responses:
            r["responses"] = responses
    after = server.answered(sc.model) if counted is not None else None
    if after is not None and after > counted:
        done = after - counted
    if done:
        r["cpu"] = 1e6 * (own1 + below1 - own0 - below0) / done
        r["cpu_host"] = 1e6 * (own1 - own0) / done
        r["cpu_below"] = 1e6 * (below1 - below0) / done
        r["cpu_client"] = 1e6 * client_cpu / done
    elif rate is not None and r["rate"]:
        share = (own1 - own0) / max(1e-9, own1 + below1 - own0 - below0)
        r["cpu"] = 1e6 * rate / r["rate"]
        r["cpu_host"], r["cpu_below"] = r["cpu"] * share, r["cpu"] * (1 - share)
    if sc.stream and done and r.get("cpu"):
        # per response is what a streaming server is about
        for k in ("cpu", "cpu_host", "cpu_below", "cpu_client"):
            if k in r:
                r[k] /= sc.stream
    r["steal"] = 100 * (steal1 - steal0) / max(1e-9, all1 - all0)
    r["others"] = 100 * max(0.0, busy1 - busy0 - client_cpu - (own1 + below1 - own0 - below0)) / wall
    return r


def wait_quiet(servers, percent, patience):
    """Wait until processes other than the servers use less than percent of a core."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        pids = [s.proc.pid for s in servers if s.proc]
        ours = sum(sum(proctree.cpu_seconds(p)) for p in pids)
        busy, begin = proctree.machine()[0], time.monotonic()
        time.sleep(1.0)
        ours = sum(sum(proctree.cpu_seconds(p)) for p in pids) - ours
        busy = proctree.machine()[0] - busy - ours
        if 100 * busy / (time.monotonic() - begin) < percent:
            return


def measure_quietly(sc, server, servers, opts, scratch):
    for _ in range(opts.tries):
        if opts.quiet:
            wait_quiet(servers, opts.quiet, opts.patience)
        r = measure(sc, server, opts, scratch)
        if "exit -9" in r.get("error", ""):
            continue  # the client hung and was stopped: not the server's doing
        if "error" in r or not opts.quiet or r["others"] < opts.quiet:
            break
    return r


def spread(values, digits=0):
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    f = f"{{:.{digits}f}}"
    mid = f.format(statistics.median(values))
    if len(values) == 1:
        return mid
    return f"{mid} [{f.format(min(values))}..{f.format(max(values))}]"


def print_table(rows):
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
    for n, r in enumerate(rows):
        print("  ".join(str(c).ljust(w) for c, w in zip(r, widths)).rstrip())
        if n == 0:
            print("  ".join("-" * w for w in widths))


def ratio(runs, a, b, key):
    pairs = [x[key] / y[key] for x, y in zip(runs[a], runs[b]) if x.get(key) and y.get(key)]
    return spread(pairs, 2)


def named(text, flag):
    name, eq, rest = text.partition("=")
    if not eq or not name:
        raise SystemExit(f"{flag} wants NAME=..., got {text!r}")
    return name, rest


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--server", action="append", required=True, metavar="NAME=COMMAND")
    ap.add_argument("--ports", action="append", default=[], metavar="NAME=HTTP,GRPC,METRICS")
    ap.add_argument(
        "--ready",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="path that answers 200 when ready (default /v2/health/ready)",
    )
    ap.add_argument(
        "--post",
        action="append",
        default=[],
        metavar="NAME=PATH|TYPE|BODYFILE",
        help="what wrk scenarios send to a server that does not speak KServe v2",
    )
    ap.add_argument(
        "--json-only",
        action="append",
        default=[],
        metavar="NAME",
        help="this server takes KServe v2 JSON but not its binary form",
    )
    ap.add_argument(
        "--python",
        default=sys.executable,
        help="a Python with tritonclient, for stream checks and pygrpc (default: this one)",
    )
    ap.add_argument("--models", default=os.path.join(HERE, "models"))
    ap.add_argument("--scenario", action="append", default=[], help="see above, or preset:" + ", preset:".join(PRESETS))
    ap.add_argument("--repeats", type=int, default=3)
    ap.add_argument(
        "--window", type=float, default=1.5, help="seconds per measurement window; a run is three windows (default 1.5)"
    )
    ap.add_argument("--perf-analyzer", default="perf_analyzer")
    ap.add_argument("--wrk", default="wrk")
    ap.add_argument("--restart", action="store_true", help="start a server afresh for each of its turns")
    ap.add_argument("--start-timeout", type=float, default=90)
    ap.add_argument(
        "--quiet", type=float, default=0, metavar="PCT", help="see above (default 0: measure whatever else runs)"
    )
    ap.add_argument("--patience", type=float, default=120, help="longest wait for quiet, seconds")
    ap.add_argument("--tries", type=int, default=4, help="runs before a disturbed one is kept")
    ap.add_argument("--json", help="also write every run here")
    ap.add_argument("--logs", help="folder for server logs (default: a temporary one)")
    ap.add_argument("--verbose", action="store_true")
    opts = ap.parse_args()

    opts.post = {n: r.split("|") for n, r in (named(p, "--post") for p in opts.post)}
    ports = {n: [int(x) for x in r.split(",")] for n, r in (named(p, "--ports") for p in opts.ports)}
    ready = dict(named(p, "--ready") for p in opts.ready)
    scenarios = []
    for s in opts.scenario or ["preset:quick"]:
        scenarios += PRESETS[s[7:]] if s.startswith("preset:") else [s]
    scenarios = [Scenario(s) for s in scenarios]

    # so that a "timeout" around this script does not leave servers behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scratch = tempfile.mkdtemp(prefix="compare-")
    logs = opts.logs or scratch
    os.makedirs(logs, exist_ok=True)
    servers = []
    for text in opts.server:
        name, command = named(text, "--server")
        given = ports.get(name, [])
        servers.append(
            Server(
                name,
                command,
                (given + [free_port() for _ in range(3)])[:3],
                os.path.abspath(opts.models),
                ready.get(name, "/v2/health/ready"),
                logs,
            )
        )
        servers[-1].json_only = name in opts.json_only
    print(f"logs: {logs}")
    results = []
    try:
        if not opts.restart:
            for s in servers:
                took = s.start(opts.start_timeout)
                time.sleep(1.0)
                before = sum(proctree.cpu_seconds(s.proc.pid))
                time.sleep(2.0)
                idle = (sum(proctree.cpu_seconds(s.proc.pid)) - before) / 2.0
                print(f"{s.name}: ready after {took:.2f} s, idle CPU {100 * idle:.1f} % of a core")
        table = [
            [
                "scenario",
                "server",
                "req/s",
                "p50 us",
                "p99 us",
                "server CPU us/req",
                "host",
                "below",
                "client CPU",
                "others %",
            ]
        ]
        for sc in scenarios:
            runs = {s.name: [] for s in servers}
            wrong = set()
            for s in servers:
                if opts.restart:
                    s.start(opts.start_timeout)
                problem = verify(sc, s, opts)
                if opts.restart:
                    s.stop()
                if problem:
                    print(f"{sc.text}: {s.name} answers wrongly, not measured: {problem}", file=sys.stderr)
                    wrong.add(s.name)
            for turn in range(opts.repeats):
                for s in servers:
                    if s.name in wrong:
                        continue
                    if opts.restart:
                        s.start(opts.start_timeout)
                    try:
                        r = measure_quietly(sc, s, servers, opts, scratch)
                    finally:
                        if opts.restart:
                            s.stop()
                    if "error" in r:
                        print(f"{sc.text} on {s.name}, turn {turn + 1}: {r['error']}", file=sys.stderr)
                    runs[s.name].append(r)
                    results.append({"scenario": sc.text, "server": s.name, "turn": turn, **r})
            for s in servers:
                good = [r for r in runs[s.name] if "error" not in r]

                def col(key, digits=0, good=good):
                    return spread([r.get(key) for r in good], digits)

                table.append(
                    [
                        sc.text,
                        s.name,
                        col("responses" if sc.stream else "rate"),
                        col("p50"),
                        col("p99"),
                        col("cpu", 1),
                        col("cpu_host", 1),
                        col("cpu_below", 1),
                        col("cpu_client", 1),
                        col("others"),
                    ]
                )
            first = servers[0].name
            for s in servers[1:]:
                key = "responses" if sc.stream else "rate"
                table.append(
                    [
                        sc.text,
                        f"{first}/{s.name}",
                        ratio(runs, first, s.name, key),
                        ratio(runs, first, s.name, "p50"),
                        ratio(runs, first, s.name, "p99"),
                        ratio(runs, first, s.name, "cpu"),
                        ratio(runs, first, s.name, "cpu_host"),
                        ratio(runs, first, s.name, "cpu_below"),
                        "",
                        "",
                    ]
                )
            print(f"done: {sc.text}", file=sys.stderr, flush=True)
        print(
            f"\nmedian [min..max] of {opts.repeats} runs; stream scenarios count responses, "
            f"and their CPU is per response\n"
        )
        print_table(table)
        for s in servers:
            if s.proc:
                m = [proctree.memory(p) for p in proctree.tree(s.proc.pid)]
                below = " ".join(format(x["rss"], ".0f") for x in m[1:])
                pss = sum(x["pss"] for x in m)
                print(
                    f"{s.name} afterwards: host rss {m[0]['rss']:.0f} MiB, below {below} MiB, pss in all {pss:.0f} MiB"
                )
    finally:
        for s in servers:
            s.stop()
        if opts.json:
            with open(opts.json, "w") as f:
                json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
