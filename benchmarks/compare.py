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
    vary       identity only: another shape in each of 1999 requests, 1 to 1999 elements
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
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import proctree
from answers import verify
from measurement import measure_quietly
from scenarios import PRESETS, Scenario
from servers import Server, free_port
from tables import print_table, ratio, spread

HERE = os.path.dirname(os.path.abspath(__file__))
HEADINGS = ["scenario", "server", "req/s", "p50 us", "p99 us", "server CPU us/req"]
HEADINGS += ["host", "below", "client CPU", "others %"]
# What servers are compared by besides their rate, as it is named in a run, and its digits in the table.
COMPARED = {"p50": 0, "p99": 0, "cpu": 1, "cpu_host": 1, "cpu_below": 1}


def named(text, flag):
    name, eq, rest = text.partition("=")
    if not eq or not name:
        raise SystemExit(f"{flag} wants NAME=..., got {text!r}")
    return name, rest


def read_options():
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
    return ap.parse_args()


def wanted_scenarios(opts):
    texts = []
    for s in opts.scenario or ["preset:quick"]:
        texts += PRESETS[s[7:]] if s.startswith("preset:") else [s]
    return [Scenario(s) for s in texts]


def make_servers(opts, logs):
    ports = {n: [int(x) for x in r.split(",")] for n, r in (named(p, "--ports") for p in opts.ports)}
    ready = dict(named(p, "--ready") for p in opts.ready)
    servers = []
    for text in opts.server:
        name, command = named(text, "--server")
        own = (ports.get(name, []) + [free_port() for _ in range(3)])[:3]
        models = os.path.abspath(opts.models)
        servers.append(Server(name, command, own, models, ready.get(name, "/v2/health/ready"), logs))
        servers[-1].json_only = name in opts.json_only
    return servers


def start_all(servers, opts):
    """Start servers that stay up, and say what each of them does without work."""
    for s in servers:
        took = s.start(opts.start_timeout)
        time.sleep(1.0)
        before = sum(proctree.cpu_seconds(s.proc.pid))
        time.sleep(2.0)
        idle = (sum(proctree.cpu_seconds(s.proc.pid)) - before) / 2.0
        print(f"{s.name}: ready after {took:.2f} s, idle CPU {100 * idle:.1f} % of a core")


@contextlib.contextmanager
def turn_of(server, opts):
    """A turn of a server, which is up for as long as that, or before and after it as well."""
    if opts.restart:
        server.start(opts.start_timeout)
    try:
        yield
    finally:
        if opts.restart:
            server.stop()


def right_ones(sc, servers, opts):
    """The servers that answer rightly."""
    right = []
    for s in servers:
        with turn_of(s, opts):
            problem = verify(sc, s, opts)
        if problem:
            print(f"{sc.text}: {s.name} answers wrongly, not measured: {problem}", file=sys.stderr)
        else:
            right.append(s)
    return right


def measure_all(sc, servers, opts, scratch, results):
    """The runs of a scenario by the names of servers, which are also added to `results`."""
    runs = {s.name: [] for s in servers}
    right = right_ones(sc, servers, opts)
    for turn in range(opts.repeats):
        for s in right:
            with turn_of(s, opts):
                r = measure_quietly(sc, s, servers, opts, scratch)
            if "error" in r:
                print(f"{sc.text} on {s.name}, turn {turn + 1}: {r['error']}", file=sys.stderr)
            runs[s.name].append(r)
            results.append({"scenario": sc.text, "server": s.name, "turn": turn, **r})
    return runs


def rows_of(sc, runs):
    """A row for each server, and one for the first beside each of the others."""
    rate = "responses" if sc.stream else "rate"
    shown = {rate: 0, **COMPARED, "cpu_client": 1, "others": 0}
    rows = []
    for name, all_runs in runs.items():
        good = [r for r in all_runs if "error" not in r]
        rows.append([sc.text, name, *(spread([r.get(key) for r in good], digits) for key, digits in shown.items())])
    first, *others = runs
    for name in others:
        ratios = [ratio(runs, first, name, key) for key in (rate, *COMPARED)]
        rows.append([sc.text, f"{first}/{name}", *ratios, "", ""])
    return rows


def print_memory(servers):
    for s in servers:
        if s.proc:
            m = [proctree.memory(p) for p in proctree.tree(s.proc.pid)]
            below = " ".join(format(x["rss"], ".0f") for x in m[1:])
            pss = sum(x["pss"] for x in m)
            print(f"{s.name} afterwards: host rss {m[0]['rss']:.0f} MiB, below {below} MiB, pss in all {pss:.0f} MiB")


def main():
    opts = read_options()
    opts.post = {n: r.split("|") for n, r in (named(p, "--post") for p in opts.post)}
    scenarios = wanted_scenarios(opts)
    # so that a "timeout" around this script does not leave servers behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scratch = tempfile.mkdtemp(prefix="compare-")
    logs = opts.logs or scratch
    os.makedirs(logs, exist_ok=True)
    servers = make_servers(opts, logs)
    print(f"logs: {logs}")
    results, table = [], [HEADINGS]
    try:
        if not opts.restart:
            start_all(servers, opts)
        for sc in scenarios:
            table += rows_of(sc, measure_all(sc, servers, opts, scratch, results))
            print(f"done: {sc.text}", file=sys.stderr, flush=True)
        print(
            f"\nmedian [min..max] of {opts.repeats} runs; stream scenarios count responses, "
            f"and their CPU is per response\n"
        )
        print_table(table)
        print_memory(servers)
    finally:
        for s in servers:
            s.stop()
        if opts.json:
            with open(opts.json, "w") as f:
                json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
