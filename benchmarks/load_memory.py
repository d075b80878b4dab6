# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and descriptors of a server's processes over the time of a run, and whether they grow.

A run is three thirds after a warm-up; the last third must not have more than the first, but for the tolerances below.
What a process has for itself ("own") must hardly grow at all. Shared memory is kept for the next tensors once it has
been needed, so it grows whenever more of them are under way than ever before, and with it the RSS of whom it is mapped
by; but a single slot that is lost with every hundredth request would be hundreds of MiB.
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
TOLERANCES = {
    "own MiB": (1.5, 0.05),
    "RSS MiB": (32.0, 0.2),
    "PSS MiB": (32.0, 0.2),
    "descriptors": (8, 0.05),
    "mappings": (8, 0.05),
    "shared MiB": (12.0, 0.1),
}


def title(pid):
    """What to call a process: the instance that it serves, or what it is."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    if words.startswith("triton_python_backend_stub "):
        return words.split()[-1]
    return words[:30]


def own_mib(pid):
    """How much memory a process has that is no file's and not shared, in MiB; 0 for one that is dead."""
    with open(f"/proc/{pid}/status") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("RssAnon:")), 0) / 1024


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
                memory, own = proctree.memory(pid), own_mib(pid)
                if not memory["rss"] or not own:
                    continue
                pids[name] = pid
                figures[name, "own MiB"] = own
                figures[name, "RSS MiB"] = memory["rss"]
                figures[name, "PSS MiB"] = memory["pss"]
                figures[name, "descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
                with open(f"/proc/{pid}/maps") as file:
                    figures[name, "mappings"] = sum(1 for _ in file)
        with suppress(OSError):  # nor need the host be there still: others see to that
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
