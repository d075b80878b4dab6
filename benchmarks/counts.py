#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Counts what a request costs the host besides time: calls of functions for it, lines of code for it, and memos.

    .venv/bin/python benchmarks/counts.py [--functions] [--case CASE] [--static]

Calls are those of functions in Python, and of functions of C by these, in the server's process, for one request. The
server counts them itself (counted_server.py), which makes it slow, but changes no number; so the machine may do other
work. A case is a scenario of compare.py: MODEL,PROTOCOL, "repeat" or "vary", and "json". "1" and "16" are requests in
flight: with 16, one read of the server may have several of them. --functions lists which functions are called, and how
often. --static leaves the calls out. Needs the Python of an environment that has this checkout and tritonclient[grpc].
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter

import count_clients
import payloads
from scenarios import Scenario
from servers import free_port, http_get
from source_counts import COUNTED, lines_of, memos
from tables import print_table

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [
    *("add_sub,http,repeat", "add_sub,http,vary", "identity,http,repeat", "identity,http,vary"),
    *("texts,http,repeat", "texts,http,vary"),
    *("add_sub,http,repeat,json", "add_sub,http,vary,json", "texts,http,repeat,json", "texts,http,vary,json"),
    *("add_sub,grpc,repeat", "add_sub,grpc,vary", "identity,grpc,repeat", "identity,grpc,vary"),
    *("texts,grpc,repeat", "texts,grpc,vary"),
]
IN_FLIGHT = (1, 16)
WARM_UP, REQUESTS = 160, 800
SENT = WARM_UP + REQUESTS
assert SENT * len(IN_FLIGHT) <= payloads.VARIED
START_S_MAX = 120
# Functions that are called less often than this for a request are not listed.
LISTED_MIN = 0.05


class CountedServer:
    """A server that says what it has counted."""

    def __init__(self, models, log):
        self.http, self.grpc = free_port(), free_port()
        argv = [sys.executable, os.path.join(HERE, "counted_server.py"), "serve", f"--model-repository={models}"]
        argv += ["--http-address=127.0.0.1", f"--http-port={self.http}", "--allow-metrics=false"]
        argv += ["--grpc-address=127.0.0.1", f"--grpc-port={self.grpc}"]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def wait_ready(self):
        end = time.monotonic() + START_S_MAX
        while http_get(f"http://127.0.0.1:{self.http}/v2/health/ready")[0] != 200:
            if self._process.poll() is not None or time.monotonic() > end:
                raise SystemExit("the server did not get ready")
            time.sleep(0.05)

    def counted(self):
        """(calls by the names of functions in Python, calls of functions in C)."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        return Counter(found["python"]), found["native"]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.communicate()


def calls_of(case, in_flight, begin, server):
    """(calls for a request by functions in Python, and of C) of a case with so many requests in flight.

    Of requests that vary it sends SENT, from number `begin` on.
    """
    sc = Scenario(case)
    requests = payloads.requests_of(sc)
    client = (count_clients.HttpClient if sc.protocol == "http" else count_clients.GrpcClient)(sc, server, in_flight)
    with client:
        turns = [
            [requests[i % len(requests)] for i in range(first, first + in_flight)]
            for first in range(begin, begin + SENT, in_flight)
        ]
        warm_up = WARM_UP // in_flight
        for turn in turns[:warm_up]:
            client.infer(turn)
        before, native_before = server.counted()
        for turn in turns[warm_up:]:
            client.infer(turn)
        after, native = server.counted()
    after.subtract(before)
    return {name: count / REQUESTS for name, count in after.items() if count}, (native - native_before) / REQUESTS


def print_calls(cases, models, list_functions):
    rows = [["case", "in flight", "Python", "C"]]
    listed = []
    with tempfile.TemporaryFile() as log, CountedServer(models, log) as server:
        server.wait_ready()
        for case in cases:
            for turn, in_flight in enumerate(IN_FLIGHT):
                # The server has not had these before.
                python, native = calls_of(case, in_flight, turn * SENT, server)
                rows.append([case, in_flight, f"{sum(python.values()):.1f}", f"{native:.1f}"])
                listed.append((case, in_flight, python))
    print("calls of functions in the host for one request\n")
    print_table(rows)
    for case, in_flight, python in listed if list_functions else ():
        print(f"\n{case}, {in_flight} in flight")
        for name, count in sorted(python.items(), key=lambda item: -item[1]):
            if count >= LISTED_MIN:
                print(f"{count:8.2f}  {name}")


def print_source():
    print("\nlines of Python\n")
    print_table([["folder", "modules", "lines"], *([folder, *lines_of(folder)] for folder in COUNTED)])
    found = memos()
    print(f"\nmemos of a limited size: {len(found)}\n")
    print("\n".join(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", action="store_true")
    parser.add_argument("--case", action="append", help="default: " + " ".join(CASES))
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--models", default=os.path.join(HERE, "models"))
    opts = parser.parse_args()
    if not opts.static:
        print_calls(opts.case or CASES, opts.models, opts.functions)
    print_source()


if __name__ == "__main__":
    main()
