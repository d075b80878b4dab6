# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Real servers for tests: processes started, watched through /proc, and held to a clean exit.

A test takes `serve` to start servers of its own, or `samples`, one server of the sample models for the whole run.
Nothing here waits for time to pass; `wait_until` polls for a condition, and gives up loudly.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.http
from tritonclient.http import InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

ROOT = Path(__file__).resolve().parent.parent.parent
# Patience, not a measure: what takes longer hangs.
LIMIT_S = 20.0
POLL_S = 0.01

IMPORTS = """
import json, logging, os, signal, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

"""
# What most small models have: any number of integers in, any number out.
IN_OUT = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""


def _wait_until(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Poll `condition` until it is true, and return what it was; AssertionError after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {limit_s:g} s: {condition}"
        time.sleep(POLL_S)
    return found


class Process(NamedTuple):
    """A process; the time it started at tells it from a later one of the same number."""

    pid: int
    started: int
    title: str

    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        found = _read_process(self.pid)
        return found is not None and found[1].started == self.started


def _read_process(pid: int) -> tuple[int, Process] | None:
    """A process and its parent's number; None for what is gone, or as good as."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    state, parent, threads, started = fields[0], int(fields[1]), int(fields[17]), int(fields[19])
    # What was killed keeps its files open until the last of its threads is gone.
    gone = state in "ZX" and threads <= 1
    return None if gone else (parent, Process(pid, started, title))


def descendants(pid: int) -> list[Process]:
    """Everything that descends from a process."""
    numbers = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    found = [process for process in map(_read_process, numbers) if process is not None]
    family = {pid}
    while more := {process.pid for parent, process in found if parent in family} - family:
        family |= more
    return [process for _, process in found if process.pid in family - {pid}]


def _named_shared_memory(pid: int) -> list[str]:
    """The files of /dev/shm that a process holds and that still have a name, so that they could be left behind."""
    names = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            names.add(os.readlink(entry))
        names.update(line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    except OSError:
        pass  # it has just gone
    return sorted(name for name in names if name.startswith("/dev/shm/") and not name.endswith(" (deleted)"))


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def to_input(name: str, array: np.ndarray, binary: bool = True) -> InferInput:
    """An array as tritonclient wants it."""
    tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return tensor.set_data_from_numpy(array, binary_data=binary)


@dataclass
class Server:
    """One server process. `log_path` holds all that it and its stubs wrote."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path
    metrics_port: int = 0
    _family: set[Process] = field(default_factory=set)

    # What it is.

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.log_path.read_text(errors="replace")

    def family(self) -> list[Process]:
        """All processes that descend from it now; they are remembered, and must be gone when it is."""
        now = descendants(self.process.pid)
        self._family.update(now)
        return now

    def stubs(self, instance: str = "") -> list[Process]:
        """The stubs, by the name of the instance that they serve; all of them without one."""
        title = f"triton_python_backend_stub {instance}"
        return [each for each in self.family() if (each.title == title if instance else each.title.startswith(title))]

    def stub(self, instance: str) -> Process:
        """The one stub of an instance."""
        (stub,) = self.stubs(instance)
        return stub

    def shared_bytes(self) -> int:
        """How much memory its shared regions use."""
        regions = {}
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # a connection that has just ended
                if os.readlink(entry).startswith(("/dev/shm/", "/memfd:")):
                    region = entry.stat()
                    regions[region.st_dev, region.st_ino] = region.st_blocks * 512
        return sum(regions.values())

    # Asking it.

    def client(self, **options: Any) -> tritonclient.http.InferenceServerClient:
        """A new client; whoever takes it closes it."""
        return tritonclient.http.InferenceServerClient(
            f"127.0.0.1:{self.port}", connection_timeout=LIMIT_S, network_timeout=LIMIT_S, **options
        )

    def infer(self, model: str, arrays: dict[str, np.ndarray], *, binary: bool = True, **options: Any) -> InferResult:
        """One inference by tritonclient. `outputs` are names; `binary` and `output_binary` say how tensors travel."""
        output_binary = options.pop("output_binary", binary)
        names = options.pop("outputs", None)
        outputs = None if names is None else [InferRequestedOutput(name, output_binary) for name in names]
        inputs = [to_input(name, array, binary) for name, array in arrays.items()]
        with closing(self.client()) as client:
            return client.infer(model, inputs, outputs=outputs, **options)

    def refusal(self, model: str, arrays: dict[str, np.ndarray], **options: Any) -> tuple[int, str]:
        """Status and message of the error that an inference must end with."""
        with pytest.raises(InferenceServerException) as caught:
            self.infer(model, arrays, **options)
        return int(caught.value.status()), caught.value.message()

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, port: int = 0
    ) -> Answer:
        """One HTTP request on a connection of its own, to the port of HTTP or to another one."""
        with closing(http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=LIMIT_S)) as connection:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    @contextmanager
    def streaming(self, model: str, **document: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of one generate_stream, as they come; `document` has the inputs and the parameters.

        A client that leaves before the end hangs up.
        """
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)) as connection:
            connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(document))
            with connection.getresponse() as response:
                yield (json.loads(line[6:]) for line in response if line.startswith(b"data: "))

    def stream(self, model: str, **document: Any) -> list[dict[str, Any]]:
        """All events of one generate_stream."""
        with self.streaming(model, **document) as events:
            return list(events)

    def connect(self) -> socket.socket:
        """A bare connection, for what no well-behaved client does."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)

    def say(self, data: bytes) -> bytes:
        """Send bytes, then nothing more, and read until the server hangs up."""
        with self.connect() as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            with sock.makefile("rb") as stream:
                return stream.read()

    def is_ready(self) -> bool:
        """Whether it says that it is ready; False while nobody listens."""
        try:
            return self.request("GET", "/v2/health/ready").status == 200
        except OSError:
            return False

    # Starting and ending it.

    def wait_ready(self) -> None:
        """Wait until it is ready; AssertionError, with the log, if it exits first."""

        def ready_or_gone() -> bool:
            return self.process.poll() is not None or self.is_ready()

        _wait_until(ready_or_gone)
        assert self.process.poll() is None, f"the server exited with {self.process.returncode}:\n{self.log}"

    def wait_exit(self) -> int:
        """Wait for it to end, and for everything it started; its exit status."""
        status = self.process.wait(LIMIT_S)
        _wait_until(lambda: not [each for each in self._family if each.is_alive()])
        return status

    def stop(self) -> None:
        """SIGTERM; it must exit with 0, leave no process and no shared memory, and have logged nothing of its own bugs.

        Does nothing to a server that is gone.
        """
        if self.process.poll() is not None:
            return
        for process in [self.process, *self.family()]:
            assert _named_shared_memory(process.pid) == []
        self.process.send_signal(signal.SIGTERM)
        assert self.wait_exit() == 0, self.log
        assert "exception was never retrieved" not in self.log, self.log
        assert "Exception in callback" not in self.log, self.log

    def kill(self) -> None:
        """End it and all it started, whatever state a failed test left them in."""
        family = [each for each in {*self._family, *self.family()} if each.is_alive()]
        self.process.kill()
        self.process.wait(LIMIT_S)
        for process in family:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def start_server(repository, log_path, *options, wrapper=(), port=0) -> Server:
    """Start a server of a repository, and do not wait for it. `wrapper` is a command that executes it in its place."""
    free = _free_ports(3)
    port = port or free[0]
    endpoints = ["--http-address=127.0.0.1", f"--http-port={port}"]
    endpoints += [f"--grpc-port={free[1]}", f"--metrics-port={free[2]}"]
    command = [*wrapper, sys.executable, "-m", "pyruntime.runtime", "serve", f"--model-repository={repository}"]
    # Log lines as they were said, without quotes and escapes.
    environment = {**os.environ, "TRITON_SERVER_ESCAPE_LOG_MESSAGES": "0"}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, *endpoints, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    return Server(process, port, log_path, free[2])


@contextmanager
def _serving(repository: Path, *options, ready=True, **how) -> Iterator[Server]:
    server = start_server(repository, repository / f".log{len(list(repository.glob('.log*')))}", *options, **how)
    try:
        if ready:
            server.wait_ready()
        yield server
        server.stop()
    finally:
        server.kill()


def _write_model(repository: Path, name: str, code: str | None, config: str | None = IN_OUT, more: str = "") -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    if code is not None:
        (folder / "1" / "model.py").write_text(IMPORTS + textwrap.dedent(code))
    if config is not None:
        (folder / "config.pbtxt").write_text(config + more)
    return folder


@pytest.fixture(scope="session")
def serving():
    """`with serving(repository, *options, ready=True, wrapper=(), port=0) as server`: stopped, cleanly, at the end."""
    return _serving


@pytest.fixture(scope="session")
def write_model():
    """`write_model(repository, name, code, config=IN_OUT, more="")`: a model's folder.

    `code` is model.py behind the usual imports; `config` is config.pbtxt, to which `more` is added. None is no file.
    """
    return _write_model


@pytest.fixture(scope="session")
def samples(tmp_path_factory) -> Iterator[Server]:
    """A server of the sample models. Tests may send it whatever they like, but break no model.

    Not of `environment`, which may take a package index and half a minute to start: that one has a server of its own.
    """
    repository = tmp_path_factory.mktemp("samples")
    for folder in (ROOT / "model_repository").iterdir():
        if folder.name != "environment":
            (repository / folder.name).symlink_to(folder)
    with _serving(repository, f"--backend-directory={ROOT / 'backends'}") as server:
        yield server


@pytest.fixture
def model(tmp_path):
    """write_model into the test's own repository, tmp_path."""
    return partial(_write_model, tmp_path)


@pytest.fixture
def serve(tmp_path):
    """`serve(*options, ...)`: a server of tmp_path, started now and stopped, cleanly, at the end of the test."""
    with ExitStack() as servers:
        yield lambda *options, **how: servers.enter_context(_serving(tmp_path, *options, **how))


@pytest.fixture(scope="session")
def require_memory():
    """`require_memory(count)`: skip the test where fewer bytes of memory could be used now."""

    def require(needed: int) -> None:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        if available < needed:
            pytest.skip(f"needs {needed} bytes of memory, {available} are available")

    return require


@pytest.fixture(scope="session")
def wait_until():
    """`wait_until(condition, limit_s=20)`: poll until it is true, and return what it was."""
    return _wait_until
