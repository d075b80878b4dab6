# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A real server: its process, requests to it, and its clean exit, without processes or shared memory left."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.http import InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from .processes import Process, descendants, named_shared_memory
from .waiting import LIMIT_S, wait_until

# Patience for loads: the import of a framework takes a minute where many processes want the cores.
READY_LIMIT_S = 2 * LIMIT_S
# How much of a server's log is shown with a test that failed, in characters.
SHOWN_LOG = 20_000


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
    """One server process. `log_path` holds all that it and its stubs wrote: `log` skips `log_begin` characters."""

    process: subprocess.Popen[bytes]
    port: int
    log_path: Path
    metrics_port: int = 0
    grpc_port: int = 0
    log_begin: int = 0
    _family: set[Process] = field(default_factory=set)

    # The state of the server.

    @property
    def log(self) -> str:
        """The log so far."""
        return self.log_path.read_text(errors="replace")[self.log_begin :]

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

    def threads(self) -> list[str]:
        """The names of the threads of its process."""
        names = []
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/comm"):
            with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
                names.append(path.read_text().rstrip("\n"))
        return names

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

    def client(self, limit_s: float = LIMIT_S, **options: Any) -> tritonclient.http.InferenceServerClient:
        """A new client, which the caller must close; it waits `limit_s` seconds for an answer."""
        return tritonclient.http.InferenceServerClient(
            f"127.0.0.1:{self.port}", connection_timeout=limit_s, network_timeout=limit_s, **options
        )

    def grpc(self, **options: Any) -> tritonclient.grpc.InferenceServerClient:
        """A new gRPC client, which the caller must close."""
        return tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{self.grpc_port}", **options)

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
        """Whether the server is ready; False while its port is closed."""
        try:
            return self.request("GET", "/v2/health/ready").status == 200
        except OSError:
            return False

    def settle(self) -> None:
        """Have it read all that was written to it before.

        The first answer may be of a turn of its loop that began before, the second one is not.
        """
        for _ in range(2):
            self.request("GET", "/v2/health/live")

    # Starting and ending it.

    def wait_ready(self) -> None:
        """Wait until it is ready; AssertionError, with the log, if it exits first."""

        def ready_or_gone() -> bool:
            return self.process.poll() is not None or self.is_ready()

        wait_until(ready_or_gone, READY_LIMIT_S)
        assert self.process.poll() is None, f"the server exited with {self.process.returncode}:\n{self.log}"

    def wait_exit(self) -> int:
        """Wait for it to end, and for everything it started; its exit status."""
        status = self.process.wait(LIMIT_S)
        wait_until(lambda: not [each for each in self._family if each.is_alive()])
        return status

    def stop(self) -> None:
        """SIGTERM; it must exit with 0, leave no process and no shared memory, and have logged nothing of its own bugs.

        Does nothing to a server that is gone.
        """
        if self.process.poll() is not None:
            return
        for process in [self.process, *self.family()]:
            assert named_shared_memory(process.pid) == []
        self.process.send_signal(signal.SIGTERM)
        assert self.wait_exit() == 0, self.log
        assert "exception was never retrieved" not in self.log, self.log
        assert "Exception in callback" not in self.log, self.log

    def kill(self) -> None:
        """End it and all processes that it started, after a failed test, too."""
        family = [each for each in {*self._family, *self.family()} if each.is_alive()]
        self.process.kill()
        self.process.wait(LIMIT_S)
        for process in family:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def start_server(repository, log_path, ports, *options, wrapper=(), port=0) -> Server:
    """Start a server of a repository, and do not wait for it. `wrapper` is a command that executes it in its place."""
    port = port or ports[0]
    endpoints = ["--http-address=127.0.0.1", f"--http-port={port}"]
    endpoints += [f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}"]
    command = [*wrapper, sys.executable, "-m", "pyruntime", "serve", f"--model-repository={repository}"]
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
    return Server(process, port, log_path, ports[2], ports[1])


@contextmanager
def start_and_stop(reserve_ports, repository: Path, *options, ready=True, **how) -> Iterator[Server]:
    """A server of a repository. It must stop cleanly at the end, and is killed if the test fails before."""
    log_path = repository / f".log{len(list(repository.glob('.log*')))}"
    with reserve_ports(3) as ports:
        server = start_server(repository, log_path, ports, *options, **how)
        try:
            if ready:
                server.wait_ready()
            yield server
            server.stop()
        finally:
            server.kill()
            # pytest shows it with a test that failed, and with no other.
            print(server.log[-SHOWN_LOG:])
