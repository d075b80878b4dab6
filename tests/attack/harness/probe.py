# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A process of its own that asks a server, over one kept connection, whether it lives, until its input ends.

Usage: probe.py PORT PID      Writes one line when the first answer has come, and a document, a Findings, at the end.

Two numbers say how long an answer took: by the clock, which counts what others do on a busy machine, and in CPU time of
the server's process between the question and the answer, which does not.
"""

import json
import select
import socket
import sys
import time

QUESTION = b"GET /v2/health/live HTTP/1.1\r\nHost: probe\r\n\r\n"
PAUSE_S = 0.005
# Patience, not a measure.
LIMIT_S = 300.0


def cpu_clock(pid: int) -> int:
    """The clock of the CPU time of a process: see clock_getcpuclockid(3)."""
    return (~pid << 3) | 2


def read_answer(stream) -> bool:
    """Whether the server said yes; False as well when it hung up."""
    status = stream.readline()
    while line := stream.readline().strip():
        if line.lower().startswith(b"content-length:"):
            stream.read(int(line.split(b":")[1]))
    return b" 200 " in status


def main(port: int, pid: int) -> None:
    clock = cpu_clock(pid)
    answers = failures = 0
    longest_s = longest_cpu_s = 0.0
    connection = stream = None
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        begun, begun_cpu = time.monotonic(), time.clock_gettime(clock)
        try:
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
                stream = connection.makefile("rb")
            connection.sendall(QUESTION)
            is_live = read_answer(stream)
        except OSError:
            is_live = False
        try:
            longest_cpu_s = max(longest_cpu_s, time.clock_gettime(clock) - begun_cpu)
        except OSError:  # the server is gone
            is_live = False
        longest_s = max(longest_s, time.monotonic() - begun)
        if is_live:
            answers += 1
        else:
            failures += 1
            connection = None
            time.sleep(PAUSE_S)
        if answers + failures == 1:
            print("begun", flush=True)
    found = {"answers": answers, "failures": failures, "longest_s": longest_s, "longest_cpu_s": longest_cpu_s}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
