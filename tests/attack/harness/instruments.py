# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The effects of an attack on a server: delays for other clients, memory, and descriptors that stay open."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...e2e.harness.server import Server

PROBE = Path(__file__).with_name("probe.py")
SAMPLE_S = 0.05


@dataclass
class Findings:
    """Times in seconds, memory in bytes. `answers` and `failures` are those of the probe."""

    answers: int = 0
    failures: int = 0
    longest_s: float = 0.0
    longest_cpu_s: float = 0.0
    peak_bytes: int = 0
    left_bytes: int = 0
    left_descriptors: int = 0

    def worst(self, other: "Findings") -> "Findings":
        """The worse of each number of two runs."""
        mine, theirs = vars(self), vars(other)
        return Findings(**{name: max(mine[name], theirs[name]) for name in mine})


def status_bytes(pid: int, *names: str) -> int:
    """The sum of some sizes in the status of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.split(":")[0] in names)


def own_bytes(server: Server) -> int:
    """The memory of the server's process without shared memory, of which idle slots stay warm up to a limit."""
    return status_bytes(server.process.pid, "RssAnon", "RssFile")


def used_bytes(server: Server) -> int:
    """The memory of the server's process, with all of its shared memory, whichever process has written to it."""
    return own_bytes(server) + server.shared_bytes()


def descriptors(server: Server) -> int:
    """How many the server's process has open."""
    return sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())


class _Peak:
    """The most memory that a server has used since this began.

    The kernel knows the peak of the process itself; what others write to shared memory is sampled.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
        self._before = status_bytes(server.process.pid, "VmRSS")
        self._used_before = self._used_most = used_bytes(server)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        try:
            while not self._ended.wait(SAMPLE_S):
                self._used_most = max(self._used_most, used_bytes(self._server))
        except OSError:
            pass  # the server is gone, which others notice

    def end(self) -> int:
        """Bytes above those at the beginning."""
        self._ended.set()
        self._thread.join()
        by_kernel = status_bytes(self._server.process.pid, "VmHWM") - self._before
        return max(by_kernel, self._used_most - self._used_before)


@contextmanager
def watching(server: Server) -> Iterator[Findings]:
    """Watch a server during an attack; the findings are complete at the end, except for `left`."""
    command = [sys.executable, str(PROBE), str(server.port), str(server.process.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        assert probe.stdout.readline() == "begun\n"
        peak = _Peak(server)
        found = Findings()
        try:
            yield found
        finally:
            probe.stdin.close()
            vars(found).update(json.loads(probe.stdout.readline()))
        found.peak_bytes = peak.end()
