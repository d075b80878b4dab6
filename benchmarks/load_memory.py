# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and descriptors of a server's processes over the time of a run, and whether they grow.

A run is three thirds after a warm-up; the last third must not have more than the first, but for the tolerances below.
"""

import os
import statistics
import threading
import time
from contextlib import suppress

import proctree

SAMPLE_S = 1.0
# Of the whole time: caches fill, memory for the largest tensors is made, allocators find their size.
WARM_UP_SHARE = 0.2
# The growth that is none, for each figure: this much, or this share of it if that is more.
TOLERANCES = {"RSS MiB": (4.0, 0.05), "PSS MiB": (4.0, 0.05), "descriptors": (8, 0.1), "shared MiB": (4.0, 0.05)}


def title(pid):
    """What to call a process: the instance that it serves, or what it is."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    if words.startswith("triton_python_backend_stub "):
        return words.split()[-1]
    return "resource tracker" if "resource_tracker" in words else "forkserver" if "forkserver" in words else words[:30]


def shared_bytes(pid):
    """How much memory the regions use that a host shares with its stubs."""
    regions = {}
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # a connection that has just ended
            path = f"/proc/{pid}/fd/{entry}"
            if os.readlink(path).startswith(("/dev/shm/", "/memfd:")):
                found = os.stat(path)
                regions[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(regions.values())


class Sampler(threading.Thread):
    """Looks at a server every second. `samples` are (time, {(process, figure): value}, {instance: pid})."""

    def __init__(self, host):
        super().__init__(name="memory")
        self.samples = []
        self._host = host
        self._done = threading.Event()

    def run(self):
        while not self._done.wait(SAMPLE_S):
            self.take()

    def take(self):
        """One sample, now."""
        figures, pids = {}, {}
        for pid in proctree.tree(self._host):
            with suppress(OSError):  # one that has just died
                name = "host" if pid == self._host else title(pid)
                memory = proctree.memory(pid)
                if not memory["rss"]:
                    continue
                pids[name] = pid
                figures[name, "RSS MiB"] = memory["rss"]
                figures[name, "PSS MiB"] = memory["pss"]
                figures[name, "descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        figures["all regions", "shared MiB"] = shared_bytes(self._host) / (1 << 20)
        self.samples.append((time.monotonic(), figures, pids))

    def end(self):
        self._done.set()
        self.join()

    def thirds(self):
        """{(process, figure): (median of the first third, of the last third, whether that is growth)}."""
        first, last = self.samples[0][0], self.samples[-1][0]
        begin = first + (last - first) * WARM_UP_SHARE
        third = (last - begin) / 3
        found = {}
        for key in sorted({key for _, figures, _ in self.samples for key in figures}):
            early = [figures[key] for at, figures, _ in self.samples if key in figures and begin <= at <= begin + third]
            late = [figures[key] for at, figures, _ in self.samples if key in figures and at >= last - third]
            if early and late:
                before, after = statistics.median(early), statistics.median(late)
                least, share = TOLERANCES[key[1]]
                found[key] = before, after, after - before > max(least, share * before)
        return found
