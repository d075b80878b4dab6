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

A scenario is comma separated: MODEL,PROTOCOL, then "repeat" or "vary", then any of
    repeat     one request, again and again: what a server remembers of it counts
    vary       another request each time, 1999 of them: identity in another shape
               (1 to 1999 numbers), add_sub with other numbers, texts of another length
               (1 to 1999 letters)
    cN         concurrency (default 1)
    bytes=N    size of the model's one input INPUT0 in bytes, where that is repeated
    shm        tensors in system shared memory (perf_analyzer only)
    stream=N   decoupled model; N responses per request, over the gRPC stream or HTTP's generate_stream
    wrk        HTTP load from wrk rather than perf_analyzer (much lighter client)
    async      perf_analyzer's asynchronous client
    json       tensors as JSON rather than binary (http; implies wrk)
    pygrpc     gRPC load from grpc_load.py, which sends metadata, and to servers perf_analyzer refuses
    first      on the first server only
and one condition, for which a server with other options is started:
    tls         over TLS (Triton has it for gRPC only)
    traces      every 1000th request is traced
    pattern     the server forwards headers of some names; the requests have none of them
    forward     the same, and each request has one, which the model gets as a parameter
    restricted  the API "inference" is restricted; each request has the right header
    scraped     with 100 models more; metrics and statistics of all are read 20 times a second
PROTOCOL is http or grpc.  Scenarios with " + " between them are measured in turns.

Where goals were set for scenarios, a table of these follows (goals.py); all of them
are measured by --scenario preset:requests.

Work of other processes is measured too (column "others", % of one core, kernel
threads included).  --quiet PCT waits before a run until others use less than
that, and repeats a run during which they used more.

CPU per request is the CPU time of the server's whole process tree over the run,
divided by the requests it answered (its own statistics endpoint when it has one,
otherwise CPU rate over the client's throughput).  It is far steadier than
throughput on a small, shared machine, where client and server compete for cores.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import goals
import proctree
from scenarios import PRESETS, groups_of
from servers import Server, free_port
from tables import print_table, ratio, spread
from turns import measure_group

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


def rows_of(sc, measured):
    """A row for each server, and one for the first beside each of the others."""
    runs = {name: server_runs for (text, name), server_runs in measured.items() if text == sc.text}
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
    groups = groups_of(opts.scenario or ["preset:quick"])
    # so that a "timeout" around this script does not leave servers behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scratch = tempfile.mkdtemp(prefix="compare-")
    logs = opts.logs or scratch
    os.makedirs(logs, exist_ok=True)
    servers = make_servers(opts, logs)
    print(f"logs: {logs}")
    results, runs, table = [], {}, [HEADINGS]
    try:
        if not opts.restart:
            start_all(servers, opts)
        for group in groups:
            measured = measure_group(group, servers, opts, scratch, results)
            runs |= measured
            for sc in group:
                table += rows_of(sc, measured)
                print(f"done: {sc.text}", file=sys.stderr, flush=True)
        print(
            f"\nmedian [min..max] of {opts.repeats} runs; stream scenarios count responses, "
            f"and their CPU is per response\n"
        )
        print_table(table)
        goal_rows = goals.rows_of(runs, [s.name for s in servers])
        if goal_rows:
            print("\ngoals: the first server's figure, divided by that of what stands beside it\n")
            print_table([goals.HEADINGS, *goal_rows])
        print_memory(servers)
    finally:
        for s in servers:
            s.stop()
        if opts.json:
            with open(opts.json, "w") as f:
                json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
