# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One run of one scenario against one server: what the load generator says, and what the machine spent."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import generators
import proctree
from scraping import Scraper

CLIENT_LIMIT_S = 45


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


def measure(sc, server, opts, scratch):
    """One run of one scenario against one server, or a dict with 'error'."""
    argv = generators.command(sc, server, opts, scratch)
    counted = server.answered(sc.model) if server.has_stats else None
    own0, below0 = proctree.cpu_seconds(server.proc.pid)
    busy0, steal0, all0 = proctree.machine()
    sampler = CpuSampler(server.proc.pid, skip=1.0)
    sampler.start()
    scraper = Scraper(server) if sc.condition == "scraped" else None
    if scraper:
        scraper.start()
    code, text, client_cpu, wall = run_child(argv)
    problem = scraper.end() if scraper else None
    rate = sampler.rate()
    own1, below1 = proctree.cpu_seconds(server.proc.pid)
    busy1, steal1, all1 = proctree.machine()
    own, below = own1 - own0, below1 - below0
    if opts.verbose:
        print(text, file=sys.stderr)
    r, done = (generators.read_wrk if sc.wrk else generators.read_report)(code, text)
    if problem:
        r["error"] = problem
    if "error" in r:
        return r
    after = server.answered(sc.model) if counted is not None else None
    if after is not None and after > counted:
        done = after - counted
    # per response is what a streaming server is about
    r |= costs(own, below, client_cpu, done * max(1, sc.stream)) if done else costs_by_rate(own, below, rate, r["rate"])
    r["steal"] = 100 * (steal1 - steal0) / max(1e-9, all1 - all0)
    known = client_cpu + own + below + (scraper.cpu_s if scraper else 0)
    r["others"] = 100 * max(0.0, busy1 - busy0 - known) / wall
    return r


def costs(own, below, client_cpu, count):
    """Microseconds of CPU for each of so many requests, or responses."""
    seconds = {"cpu": own + below, "cpu_host": own, "cpu_below": below, "cpu_client": client_cpu}
    return {key: 1e6 * value / count for key, value in seconds.items()}


def costs_by_rate(own, below, cpu_rate, request_rate):
    """The same where nobody has counted the requests; nothing if there is no telling."""
    if cpu_rate is None or not request_rate:
        return {}
    cpu = 1e6 * cpu_rate / request_rate
    share = own / max(1e-9, own + below)
    return {"cpu": cpu, "cpu_host": cpu * share, "cpu_below": cpu * (1 - share)}


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
