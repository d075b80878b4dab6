#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What small requests notice of others, and what memory these leave behind: all in one run, on one server at a time.

    beside.py --command '.venv/bin/pyruntime serve --model-repository={models}
                --http-address=127.0.0.1 --http-port={http} --grpc-port={grpc} --metrics-port={metrics}'
              [--streams 200] [--models 100,500] [--seconds 5]

A client sends requests of identity one after the other, alone, and beside streams of decoupled_repeat that are read as
fast as they come; then beside readings of metrics and statistics, 20 a second, of a server that has so many models
more. Memory is that of the server's own process: before the streams, at the end of them, and SETTLE_S later.
"""

import argparse
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import conditions
import kserve
import proctree
from scraping import Scraper
from servers import Server, free_port

HERE = os.path.dirname(os.path.abspath(__file__))
# Responses of a stream.
RESPONSES = 1000
# When the server has given back what it gives back, in seconds.
SETTLE_S = 15
WARM_UP_S = 1


def repository(root, more):
    """The models that are measured, and `more` others."""
    path = os.path.join(root, f"models_{more}")
    for name in ("identity", "decoupled_repeat"):
        shutil.copytree(os.path.join(HERE, "models", name), os.path.join(path, name))
    conditions.write_models(path, "identity", more)
    return path


def latencies_ms(server, seconds):
    """How long each request took, in order of size."""
    body, headers = kserve.request([("INPUT0", [1.0] * 16)])
    connection, took = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60), []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        connection.request("POST", "/v2/models/identity/infer", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            sys.exit(f"identity answered {answer.status}: {content[:300]!r}")
        took.append(1e3 * (time.perf_counter() - begin))
    connection.close()
    return sorted(took)


def show(what, took):
    p50, p99 = (took[min(len(took) - 1, len(took) * p // 100)] for p in (50, 99))
    print(f"{what:<44}{len(took):>8} requests  p50 {p50:7.2f} ms  p99 {p99:7.2f} ms", flush=True)


def resident_mib(server):
    return proctree.memory(server.proc.pid)["rss"]


def beside_streams(server, opts):
    before = resident_mib(server)
    words = [f"127.0.0.1:{server.http}", "decoupled_repeat", RESPONSES, opts.streams, opts.seconds + 2 * WARM_UP_S]
    argv = [sys.executable, os.path.join(HERE, "generate_load.py"), *map(str, words)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as streams:
        time.sleep(WARM_UP_S)
        took = latencies_ms(server, opts.seconds)
        during = resident_mib(server)
        figures, _ = streams.communicate()
    if streams.returncode:
        sys.exit(f"streams failed: {figures}")
    show(f"beside {opts.streams} streams", took)
    rate = next(line for line in figures.splitlines() if "Response Throughput" in line)
    time.sleep(SETTLE_S)
    print(f"  {rate.strip()} responses a second")
    print(f"  memory: {before:.0f} MiB before, {during:.0f} at the end, {resident_mib(server):.0f} after {SETTLE_S} s")


def beside_readings(server, models, opts):
    show(f"{models} models more, alone", latencies_ms(server, opts.seconds))
    scraper = Scraper(server)
    scraper.start()
    took = latencies_ms(server, opts.seconds)
    problem = scraper.end()
    if problem:
        sys.exit(problem)
    show(f"{models} models more, {scraper.readings} readings", took)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", required=True)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--models", default="100,500", help="how many models more, for each server that is read")
    parser.add_argument("--seconds", type=float, default=5)
    opts = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        for models in (0, *map(int, opts.models.split(","))):
            ports = [free_port() for _ in range(3)]
            server = Server("server", opts.command, ports, repository(root, models), "/v2/health/ready", root)
            server.start(120)
            try:
                latencies_ms(server, WARM_UP_S)
                if models:
                    beside_readings(server, models, opts)
                else:
                    show("alone", latencies_ms(server, opts.seconds))
                    beside_streams(server, opts)
            finally:
                server.stop()


if __name__ == "__main__":
    main()
