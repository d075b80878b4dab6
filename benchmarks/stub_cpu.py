# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""CPU of a stub for each request of add_sub, without a server: this process has the host's end of the socket.

Usage: python benchmarks/stub_cpu.py [--requests N] [--repeats N] [--python] [IN_FLIGHT ...]

Every request has another id, another shape and another place in memory. `--python` leaves everything to Python. Prints
the median of the repeats, and each of them: user and system time together, as the kernel counts it for the process.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pyruntime.runtime.regions import create_region
from pyruntime.utils import fast_path
from pyruntime.utils.channel import HostChannel
from pyruntime.utils.messages import OK, SLOT, Hello, Infer, Load, Ready, Result, Stop, Stopped

MODEL = Path(__file__).parent / "models/add_sub/1/model.py"
SPECS = [{"data_type": "TYPE_FP32", "dims": [-1]} for _ in range(2)]
CONFIG = {
    "input": [{"name": f"INPUT{number}", **spec} for number, spec in enumerate(SPECS)],
    "output": [{"name": f"OUTPUT{number}", **spec} for number, spec in enumerate(SPECS)],
}
GROWTH_BYTES = 1 << 20
# An input has up to so many floats, and so many places where inputs lie.
FLOATS_MAX = 400
PLACES = 64
PLACE_BYTES = 4096
WARM_UP = 3000


class Stub:
    """A stub in a process of its own, and the host's end of the conversation."""

    def __init__(self, folder):
        self._requests, self._responses = create_region("requests"), create_region("responses")
        self._requests.commit(0, PLACES * PLACE_BYTES)
        self._requests.map[0 : PLACES * PLACE_BYTES] = np.ones(PLACES * PLACE_BYTES // 4, np.float32).tobytes()
        self._sock, theirs = socket.socketpair()
        self._grants, their_grants = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._serve(theirs, their_grants)
        theirs.close()
        their_grants.close()
        self._channel = HostChannel()
        self._waiting = []
        self._sizes = np.random.default_rng(1).integers(1, FLOATS_MAX, 1000).tolist()
        self._serial = 0
        self._released = []
        assert type(self._receive()) is Hello
        args = {"model_config": json.dumps(CONFIG), "model_name": "add_sub", "model_instance_name": "add_sub_0"}
        args |= {"model_version": "1", "model_repository": folder, "model_instance_kind": "CPU"}
        model = shutil.copy(MODEL, os.path.join(folder, "1", "model.py"))
        location = {"model_dir": folder, "version": "1", "file": model}
        self._sock.sendall(self._channel.send(Load(location, args, 1, self._requests.number)))
        answer = self._receive()
        if type(answer) is not Ready:
            sys.exit(f"the model is not loaded: {answer}")

    def _serve(self, sock, grants):
        """Be the stub, in the child."""
        from pyruntime.stub import main

        self._sock.close()
        self._grants.close()
        descriptors = [os.dup(each) for each in (2, self._requests.fileno(), self._responses.fileno())]
        status = 1
        try:
            main.run("add_sub_0", sock, grants, *descriptors, GROWTH_BYTES, at_terminal=True)
            status = 0
        finally:
            os._exit(status)

    def _receive(self):
        while not self._waiting:
            data = self._sock.recv(1 << 16)
            if not data:
                sys.exit("the stub has ended")
            self._waiting.extend(self._channel.receive_data(data))
        return self._waiting.pop(0)

    def _post(self):
        self._serial += 1
        size = self._sizes[self._serial % len(self._sizes)]
        at = self._serial % PLACES * PLACE_BYTES
        tensors = [[f"INPUT{n}", "FP32", [size], at + n * PLACE_BYTES // 2, 4 * size, 0, 0] for n in range(2)]
        wire = [str(self._serial), 0, 0, 0, None, "", tensors, "", None]
        self._sock.sendall(self._channel.send(Infer(self._serial, [wire], self._released)))
        self._released = []

    def _answered(self):
        result = self._receive()
        assert type(result) is Result
        (response,) = result.responses
        assert response[0] == OK
        self._released.append(response[SLOT])

    def run(self, count, in_flight):
        """Microseconds of CPU for each of so many requests."""
        clock = (~self._pid << 3) | 2  # that of another process: see clock_getcpuclockid(3)
        begin = time.clock_gettime(clock)
        for _ in range(in_flight):
            self._post()
        for _ in range(count - in_flight):
            self._answered()
            self._post()
        for _ in range(in_flight):
            self._answered()
        return 1e6 * (time.clock_gettime(clock) - begin) / count

    def stop(self):
        self._sock.sendall(self._channel.send(Stop()))
        assert type(self._receive()) is Stopped
        os.waitpid(self._pid, 0)


def main():
    parser = argparse.ArgumentParser(description="CPU of a stub for each request of add_sub.")
    parser.add_argument("in_flight", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--python", action="store_true", help="without native code")
    options = parser.parse_args()
    if options.python:
        os.environ[fast_path.VARIABLE] = "1"
        os.execv(sys.executable, [sys.executable, *[each for each in sys.argv if each != "--python"]])
    for in_flight in options.in_flight:
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "1"))
            stub = Stub(folder)
            stub.run(WARM_UP, in_flight)
            found = [stub.run(options.requests, in_flight) for _ in range(options.repeats)]
            stub.stop()
        each = " ".join(f"{us:.1f}" for us in found)
        print(f"{in_flight} in flight: {statistics.median(found):.1f} us for each request ({each})", flush=True)


if __name__ == "__main__":
    main()
