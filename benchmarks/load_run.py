#!/usr/bin/env python3
# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Everything at once: one server, the models that people write, and clients of all kinds, for some minutes.

    load_run.py --minutes 3 [--other-python PYTHON]

Checked is that every request is answered exactly once, with what belongs to it; that errors come where they are meant
to, and nowhere else; that what models count is what clients count; that no process dies which was not to; that neither
memory nor descriptors grow; and that the server ends as it should. The exit status is 1 if any of it is not so.

The models are those of load_models/, the clients those of load_clients.py, what they ask that of load_requests.py.
"""

import argparse
import contextlib
import glob
import http.client
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import load_clients as clients
import load_memory
import load_requests as requests
import proctree

HERE = os.path.dirname(os.path.abspath(__file__))

READY_S_MAX = 60.0
EXIT_S_MAX = 40.0
# What the host has started ends when it does, but not in the same moment.
GONE_S_MAX = 5.0
# An instance that dies five times without 30 s between is given up, so each has more than that between its deaths.
CRASH_EVERY_S = 36.0
# What the log must not have: bugs of the server's own.
NOT_TO_BE_LOGGED = (
    "was never retrieved",
    "Exception in callback",
    "Fatal error",
    "broke the protocol",
    "Task was destroyed",
)
COLUMNS = ("requests", *clients.Tally.OUTCOMES)
# Models whose clients take their time between requests, in seconds.
PAUSES_S = {"reloader": 3.0}
# Models whose processes are replaced, as they are to be.
REPLACED = ("reloaded",)
# The row of what is asked of the server itself.
NO_MODEL = "(probes)"


def fleet(sums):
    """(model, how many clients, what they do), but for the crashes."""
    return [
        ("streamer", 4, requests.stream_tokens),
        ("streamer", 2, requests.leave_stream),
        ("streamer", 1, requests.stream_to_slow_reader),
        ("relay", 2, requests.stream_tokens),
        ("relay", 1, requests.leave_stream),
        ("pipeline", 1, requests.show_images("large")),
        ("pipeline", 2, requests.show_images("small")),
        ("pipeline", 1, requests.leave_unanswered),
        ("pipeline_async", 1, requests.show_images("large")),
        ("pipeline_async", 2, requests.show_images("small")),
        ("pipeline_async", 1, requests.leave_unanswered),
        ("preprocess", 1, requests.leave_unanswered),
        ("accumulator", 3, sums.accumulate),
        ("other_python", 1, requests.square),
        ("failing", 2, requests.fail),
        ("failing_initialize", 1, requests.ask_what_is_not_there),
        ("leaking", 1, requests.stream_indexes),
        ("threads", 2, requests.stream_by_threads),
        ("pool", 3, requests.square),
        ("reloaded", 2, requests.square),
        ("reloader", 1, requests.reload),
        ("crashing", 3, requests.square),
        ("crashing_caller", 2, requests.image_number),
        ("crashing_streams", 3, requests.stream_until_crash),
        (NO_MODEL, 1, requests.probe),
    ]


# The deaths of one round: a model, in which way, and the instance that dies. They are spread over CRASH_EVERY_S.
CRASHES = [
    [("crashing", "segfault", "crashing_0_0"), ("crashing_caller", "itself", "crashing_caller_0_0"),
     ("crashing_streams", "", "crashing_streams_0_0")],
    [("crashing_caller", "callee", "crashing_0_0"), ("crashing_caller", "itself", "crashing_caller_0_0"),
     ("crashing_streams", "", "crashing_streams_0_0")],
    [("crashing", "kill", "crashing_0_0"), ("crashing_caller", "itself", "crashing_caller_0_0"),
     ("crashing_streams", "", "crashing_streams_0_0")],
]  # fmt: skip
# Models whose every request is one of a client that waits for its answer: what the server counts is what they count.
COUNTED = ("accumulator", "failing", "leaking", "threads", "pool", "other_python", "crashing_streams")


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Server:
    """The server of a repository, in a process of its own."""

    def __init__(self, repository, log_path):
        self.port, grpc, self.metrics_port = free_ports(3)
        self.log_path = log_path
        environment = {**os.environ, "TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"}
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pyruntime", "serve", f"--model-repository={repository}",
                 "--http-address=127.0.0.1", f"--http-port={self.port}", f"--grpc-port={grpc}",
                 f"--metrics-port={self.metrics_port}", "--model-control-mode=explicit", "--load-model=*",
                 "--exit-on-error=false", "--strict-readiness=false"],
                stdout=log, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip

    def get(self, path, port=None):
        """Status and body of what is at a path."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=clients.ANSWER_S_MAX)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def wait(self, path, what):
        """Wait until a path is answered with 200."""
        deadline = time.monotonic() + READY_S_MAX
        while True:
            with contextlib.suppress(OSError):
                if self.get(path)[0] == 200:
                    return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{what} is not ready:\n{self.log()[-4000:]}")
            time.sleep(0.05)

    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def counts(self, model):
        """What the server says of a model's requests: how many succeeded, and how many failed."""
        stats = json.loads(self.get(f"/v2/models/{model}/stats")[1])["model_stats"][0]["inference_stats"]
        return stats["success"]["count"], stats["fail"]["count"]

    def metrics(self):
        """{name and labels: value} of the metrics page."""
        page = self.get("/metrics", self.metrics_port)[1]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[0] != "#"}

    def end(self):
        """SIGTERM; the exit status, or None if that takes too long. Nothing of it is left then."""
        family = proctree.tree(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(EXIT_S_MAX)
        except subprocess.TimeoutExpired:
            for pid in reversed(family):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            return None


def wait_gone(pids):
    """Those of these processes that have not ended in good time."""
    deadline = time.monotonic() + GONE_S_MAX
    while (left := [pid for pid in pids if os.path.exists(f"/proc/{pid}")]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


# The other Python.


def candidates():
    """Interpreters of this machine, the oldest first, that are not of the host's version."""
    installed = os.path.join(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), "versions")
    for minor in range(8, 15):
        if minor != sys.version_info[1]:
            found = glob.glob(os.path.join(installed, f"3.{minor}.*", "bin", "python"))
            yield from ((minor, each) for each in filter(None, [shutil.which(f"python3.{minor}"), *found]))


def can(python, statement):
    return subprocess.run([python, "-c", statement], capture_output=True, cwd="/").returncode == 0


def find_other_python():
    """An interpreter of another version than ours, with numpy or made an environment that has it; "" for none."""
    here = list(candidates())
    for _, python in here:
        if can(python, "import numpy"):
            return python
    for minor, python in here:
        folder = os.path.join(os.path.dirname(HERE), "build", f"load-python-3.{minor}")
        made = os.path.join(folder, "bin", "python")
        if os.path.exists(made) and can(made, "import numpy"):
            return made
        if not can(python, f"import sys, venv; assert sys.version_info[:2] == (3, {minor})"):
            continue
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        # By our own pip, which need not run under the other Python.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
        target = os.path.join(folder, "lib", f"python3.{minor}", "site-packages")
        subprocess.run([*pip, f"--python-version=3.{minor}", f"--target={target}", "numpy"], capture_output=True)
        if can(made, "import numpy"):
            return made
    return ""


def make_repository(folder, other_python):
    """The models, in a folder of their own."""
    shutil.copytree(os.path.join(HERE, "load_models"), folder, ignore=shutil.ignore_patterns("__pycache__"))
    if not other_python:
        shutil.rmtree(os.path.join(folder, "other_python"))
        return
    with open(os.path.join(folder, "other_python", "config.pbtxt"), "a") as file:
        value = f'{{ string_value: "{other_python}" }}'
        file.write(f'parameters {{ key: "EXECUTION_ENV_PATH" value {value} }}\n')


# The run.


class Crasher(threading.Thread):
    """Has processes die, one after the other. `deaths` is {instance: how often}."""

    def __init__(self, server, tallies, stop, first_s):
        super().__init__(name="crasher")
        self.deaths = {instance: 0 for _, _, instance in CRASHES[0]}
        self._server = server
        self._tallies = tallies
        self._stop_event = stop
        self._first_s = first_s

    def run(self):
        pause_s = self._first_s
        turn = 0
        while True:
            for model, how, instance in CRASHES[turn % len(CRASHES)]:
                if self._stop_event.wait(pause_s):
                    return
                pause_s = CRASH_EVERY_S / len(CRASHES[0])
                client = clients.Client(
                    self._server.port, model, self._tallies[model], requests.crash(how), self._stop_event
                )
                client.once()
                client.hang_up()
                self.deaths[instance] += 1
            turn += 1


def run_load(server, models, seconds, sums):
    """Run all clients for a time; ({model: tally}, {instance: deaths}, the sampler)."""
    tallies = {model: clients.Tally() for model, _, _ in fleet(sums) if model in models}
    stop = threading.Event()
    threads = [
        clients.Client(server.port, model, tallies[model], act, stop, PAUSES_S.get(model, clients.PAUSE_S))
        for model, count, act in fleet(sums)
        if model in models
        for _ in range(count)
    ]
    crasher = Crasher(server, tallies, stop, first_s=seconds / 12)
    sampler = load_memory.Sampler(server.process.pid)
    sampler.take()
    for thread in [sampler, *threads, crasher]:
        thread.start()
    time.sleep(seconds)
    sampler.end()
    stop.set()
    deadline = time.monotonic() + clients.ANSWER_S_MAX + 10
    for thread in [crasher, *threads]:
        thread.join(max(0, deadline - time.monotonic()))
        if thread.is_alive():
            tallies[thread.model].end("lost", f"{thread.name} has not come to an end")
    return tallies, crasher.deaths, sampler


def check(server, tallies, deaths, sampler, sums):
    """All that is wrong, in words."""
    problems = [problem for tally in tallies.values() for problem in tally.problems]
    problems += [
        f"{model}: not every request came to an end that is meant" for model in tallies if not tallies[model].is_right()
    ]
    # What has been given up on by its client may not have ended yet.
    deadline = time.monotonic() + clients.ANSWER_S_MAX
    while (found := server.metrics()) and time.monotonic() < deadline:
        begun, whole, cancelled = (found[f'load_streams{{how="{how}"}}'] for how in ("begun", "whole", "cancelled"))
        if begun == whole + cancelled:
            break
        time.sleep(0.1)
    else:
        problems.append(f"of {begun:g} streams {whole:g} ended, and {cancelled:g} because they were cancelled")
    if found["load_accumulated_requests"] != sums.requests or found["load_accumulated_sum"] != sums.sum:
        counted = found["load_accumulated_requests"], found["load_accumulated_sum"]
        problems.append(f"the accumulator counted {counted} and its clients {(sums.requests, sums.sum)}")
    for model in COUNTED:
        if model in tallies:
            said, counts = server.counts(model), tallies[model].counts
            if said != (counts["answered"], counts["failed"]):
                problems.append(f"{model}: the server counted {said}, its clients {counts}")
    log = server.log()
    first, last = sampler.samples[0][2], sampler.samples[-1][2]
    for instance in sorted(first):
        restarts = len(re.findall(rf"\b{instance}: restarts in ", log))
        if restarts != deaths.get(instance, 0):
            problems.append(f"{instance} was started again {restarts} times, and died {deaths.get(instance, 0)} times")
        is_replaced = instance.startswith(REPLACED)
        if instance not in deaths and not is_replaced and first[instance] != last.get(instance):
            problems.append(f"{instance} is not the process that it was")
    problems += [f"the log has '{text}'" for text in NOT_TO_BE_LOGGED if text in log]
    problems += [
        f"{name}: {figure} grew from {before:.1f} to {after:.1f}"
        for (name, figure), (before, after, grew) in sampler.thirds().items()
        if grew
    ]
    return problems


def show(tallies, deaths, sampler, seconds):
    total = sum(tally.requests for tally in tallies.values())
    print(f"{total} requests in {seconds:g} s; {sum(deaths.values())} processes died, as they were to")
    print()
    print(f"{'model':<20}" + "".join(f"{column:>12}" for column in COLUMNS))
    for model, tally in tallies.items():
        values = [tally.requests, *tally.counts.values()]
        print(f"{model:<20}" + "".join(f"{value:>12}" for value in values))
    print()
    figures = list(load_memory.TOLERANCES)
    print(f"{'first third > last':<22}" + "".join(f"{figure:>17}" for figure in figures))
    thirds = sampler.thirds()
    for name in sorted({name for name, _ in thirds}):
        cells = []
        for figure in figures:
            before, after, grew = thirds.get((name, figure), (None, None, False))
            cells.append("" if before is None else f"{before:.1f} > {after:.1f}{'!' if grew else ''}")
        print(f"{name:<22}" + "".join(f"{cell:>17}" for cell in cells))
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--other-python", help="an interpreter with numpy; one that is not the server's is looked for")
    options = parser.parse_args()
    seconds = options.minutes * 60
    other_python = options.other_python or find_other_python()
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores")
    print(f"other_python: {other_python or 'left out, for there is no other Python here that has or gets numpy'}")
    left_in_shm = set(os.listdir("/dev/shm"))
    folder = tempfile.mkdtemp(prefix="load-run-")
    repository = os.path.join(folder, "models")
    make_repository(repository, other_python)
    server = Server(repository, os.path.join(folder, "log"))
    problems = ["the run did not come to its end"]
    try:
        server.wait("/v2/health/ready", "the server")
        models = {*os.listdir(repository), NO_MODEL}
        sums = requests.Sums()
        tallies, deaths, sampler = run_load(server, models, seconds, sums)
        for instance in deaths:
            server.wait(f"/v2/models/{instance[:-4]}/ready", instance)
        show(tallies, deaths, sampler, seconds)
        problems = check(server, tallies, deaths, sampler, sums)
    finally:
        family = proctree.tree(server.process.pid)
        status = server.end()
        if status != 0:
            problems.append(f"the server exited with {status}")
        problems += [f"process {pid} is left" for pid in wait_gone(family)]
        problems += [f"/dev/shm/{name} is left" for name in set(os.listdir("/dev/shm")) - left_in_shm]
        for problem in problems:
            print(f"WRONG: {problem}")
        print(f"the log is {server.log_path}" if problems else "nothing wrong")
    if problems:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
