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
import ssl
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import h2.config
import h2.connection
import h2.events
import h2.settings
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import trustme
from tritonclient.http import InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

ROOT = Path(__file__).resolve().parent.parent.parent
# Patience, not a measure: what takes longer hangs, also where ten processes want each core.
LIMIT_S = 60.0
POLL_S = 0.01
# How much of a server's log is shown with a test that failed, in characters.
SHOWN_LOG = 20_000

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
    grpc_port: int = 0
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

    def grpc(self, **options: Any) -> tritonclient.grpc.InferenceServerClient:
        """A new gRPC client; whoever takes it closes it."""
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


def _start_server(repository, log_path, ports, *options, wrapper=(), port=0) -> Server:
    """Start a server of a repository, and do not wait for it. `wrapper` is a command that executes it in its place."""
    port = port or ports[0]
    endpoints = ["--http-address=127.0.0.1", f"--http-port={port}"]
    endpoints += [f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}"]
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
    return Server(process, port, log_path, ports[2], ports[1])


@contextmanager
def _serving(reserve_ports, repository: Path, *options, ready=True, **how) -> Iterator[Server]:
    log_path = repository / f".log{len(list(repository.glob('.log*')))}"
    with reserve_ports(3) as ports:
        server = _start_server(repository, log_path, ports, *options, **how)
        try:
            if ready:
                server.wait_ready()
            yield server
            server.stop()
        finally:
            server.kill()
            # pytest shows it with a test that failed, and with no other.
            print(server.log[-SHOWN_LOG:])


def _write_model(repository: Path, name: str, code: str | None, config: str | None = IN_OUT, more: str = "") -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    if code is not None:
        (folder / "1" / "model.py").write_text(IMPORTS + textwrap.dedent(code))
    if config is not None:
        (folder / "config.pbtxt").write_text(config + more)
    return folder


@pytest.fixture(scope="session")
def serving(reserve_ports):
    """`with serving(repository, *options, ready=True, wrapper=(), port=0) as server`: stopped, cleanly, at the end."""
    return partial(_serving, reserve_ports)


@pytest.fixture(scope="session")
def write_model():
    """`write_model(repository, name, code, config=IN_OUT, more="")`: a model's folder.

    `code` is model.py behind the usual imports; `config` is config.pbtxt, to which `more` is added. None is no file.
    """
    return _write_model


@pytest.fixture(scope="session")
def samples(serving, tmp_path_factory) -> Iterator[Server]:
    """A server of the sample models. Tests may send it whatever they like, but break no model.

    Not of `environment`, which may take a package index and half a minute to start: that one has a server of its own.
    """
    repository = tmp_path_factory.mktemp("samples")
    for folder in (ROOT / "model_repository").iterdir():
        if folder.name != "environment":
            (repository / folder.name).symlink_to(folder)
    with serving(repository, f"--backend-directory={ROOT / 'backends'}") as server:
        yield server


@pytest.fixture
def model(tmp_path):
    """write_model into the test's own repository, tmp_path."""
    return partial(_write_model, tmp_path)


@pytest.fixture
def serve(serving, tmp_path):
    """`serve(*options, ...)`: a server of tmp_path, started now and stopped, cleanly, at the end of the test."""
    with ExitStack() as servers:
        yield lambda *options, **how: servers.enter_context(serving(tmp_path, *options, **how))


# Executes a command of Python's in which limits of a module are others.
_WITH_LIMITS = """
import json, runpy, sys
from importlib import import_module
module, limits = sys.argv[1:3]
vars(import_module(module)).update(json.loads(limits))
sys.argv = sys.argv[5:]
runpy.run_module("pyruntime.runtime", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="session")
def with_limits():
    """`serve(wrapper=with_limits(module, NAME=value))`: a server with other limits in a module of pyruntime.runtime."""
    return lambda module, **limits: (
        sys.executable,
        "-c",
        _WITH_LIMITS,
        f"pyruntime.runtime.{module}",
        json.dumps(limits),
    )


@pytest.fixture(scope="session")
def patient(with_limits):
    """`serve(wrapper=patient)`: a server that does not give up asking a model whether it is ready."""
    return with_limits("instances.python", IS_READY_TIMEOUT_S=600.0)


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
def certificates(tmp_path_factory):
    """Folder of root.pem, of cert.pem and key.pem for the server, and of client.pem and client-key.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "root.pem"))
    server, client = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("client@example.org")
    for issued, certificate, key in [(server, "cert", "key"), (client, "client", "client-key")]:
        issued.cert_chain_pems[0].write_to_path(str(folder / f"{certificate}.pem"))
        issued.private_key_pem.write_to_path(str(folder / f"{key}.pem"))
    return folder


@pytest.fixture(scope="session")
def wait_until():
    """`wait_until(condition, limit_s=60)`: poll until it is true, and return what it was."""
    return _wait_until


class BareCall:
    """What has come of one call of a bare client: `data` are framed messages, `end` the headers it ended with."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end: dict[str, str] = {}
        self.reset: int | None = None

    @property
    def status(self) -> str | None:
        """grpc-status, or `reset` and an error code of HTTP/2; None while the call goes on."""
        return self.end.get("grpc-status", None if self.reset is None else f"reset {self.reset}")


class BareClient:
    """A client of HTTP/2 that does what no client of gRPC does. `opens_windows` is whether it takes what comes."""

    INFER = "/inference.GRPCInferenceService/ModelInfer"
    STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
    LIVE = "/inference.GRPCInferenceService/ServerLive"

    def __init__(self, port: int, window: int | None = None, context: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        if context is not None:
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.opens_windows = window is None
        if window is not None:
            self.h2.local_settings = h2.settings.Settings(client=True, initial_values={4: window})
        self.calls: dict[int, BareCall] = {}
        self.events: list[Any] = []
        self._rest = b""
        self.h2.initiate_connection()
        self.flush()

    def __enter__(self) -> "BareClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def flush(self) -> None:
        """Write what h2 has to say."""
        self.sock.sendall(self.h2.data_to_send())

    def head(self, path: str, ended: bool = False, **metadata: str) -> int:
        """Begin a call, and do not write it yet; its number."""
        stream: int = self.h2.get_next_available_stream_id()
        self.calls[stream] = BareCall()
        head = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a"}
        head |= {"content-type": "application/grpc", "te": "trailers", **metadata}
        self.h2.send_headers(stream, list(head.items()), end_stream=ended)
        return stream

    def call(self, path: str, message: bytes = b"", **metadata: str) -> int:
        """A call of one message, which may be larger than windows."""
        stream = self.head(path, **metadata)
        self.send(stream, b"\0" + len(message).to_bytes(4, "big") + message, ended=True)
        return stream

    def send(self, stream: int, data: bytes, ended: bool = False) -> None:
        """Data as it is, as windows allow."""
        while True:
            size = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size, len(data))
            if data and not size:
                self.flush()
                self.read()
                continue
            self.h2.send_data(stream, data[:size], end_stream=ended and size == len(data))
            data = data[size:]
            if not data:
                break
        self.flush()

    def read(self) -> bool:
        """Read once, and note what came; False at the end."""
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionError:
            data = b""
        self._rest += data
        # Frame by frame: what an event changes holds for the next frame.
        while len(self._rest) >= 9 and len(self._rest) >= (size := 9 + int.from_bytes(self._rest[:3], "big")):
            for event in self.h2.receive_data(self._rest[:size]):
                self._note(event)
            self._rest = self._rest[size:]
        with suppress(ConnectionError):
            self.flush()
        return bool(data)

    def _note(self, event: Any) -> None:
        self.events.append(event)
        call = self.calls.get(getattr(event, "stream_id", None) or 0, BareCall())
        match event:
            case h2.events.ConnectionTerminated(error_code=0):
                # To h2 this is the end, though calls that are under way go on.
                self.h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                call.end |= dict(event.headers)
            case h2.events.StreamReset():
                call.reset = int(event.error_code)
            case h2.events.DataReceived():
                call.data += event.data
                if self.opens_windows:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def read_until(self, condition: Callable[[], Any]) -> Any:
        """Read until something is so; AssertionError if the server hangs up before."""
        while not (found := condition()):
            assert self.read(), f"the server hung up: {self.events[-5:]}"
        return found

    def status(self, stream: int) -> str:
        """How a call ends."""
        return str(self.read_until(lambda: self.calls[stream].status))

    def saw(self, kind: type) -> Any:
        """The first event of a kind, or None."""
        return next((event for event in self.events if isinstance(event, kind)), None)


@pytest.fixture(scope="session")
def bare_client():
    """`with bare_client(port, window=None, context=None) as client`: see BareClient."""
    return BareClient


# A model of one input, and an output like it.
ECHO = """
backend: "{}"
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ {} ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ {} ] }} ]
"""


def _echo_config(backend, dims="-1", more="", **parameters):
    entry = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    return ECHO.format(backend, dims, dims) + more + "".join(entry.format(*each) for each in parameters.items())


def _body_of(values, **members):
    """(the JSON, all of the body) of a request."""
    size = 4 * len(values)
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [len(values)], "parameters": {"binary_data_size": size}}
    document = json.dumps({"inputs": [tensor], **({"parameters": {"binary_data_output": True}} | members)}).encode()
    return document, document + struct.pack(f"<{len(values)}i", *values)


def _post(model, body, *lines):
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", *lines, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def _raw_infer(model, *values, lines=(), **members):
    """The bytes of a request."""
    document, body = _body_of(values, **members)
    return _post(model, body, *lines, f"Inference-Header-Content-Length: {len(document)}")


def _raw_chunked(model, *values):
    """The same in chunks."""
    document, body = _body_of(values)
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", "Transfer-Encoding: chunked"]
    lines += [f"Inference-Header-Content-Length: {len(document)}", "", ""]
    return "\r\n".join(lines).encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


class RawClient:
    """A connection that keeps what it gets as it came."""

    def __init__(self, server):
        self.sock = server.connect()
        self.stream = self.sock.makefile("rb")

    def close(self):
        self.stream.close()
        self.sock.close()

    def leave(self, how):
        """Go without a word: "reset" or "close" the connection, or say only that nothing more comes ("half")."""
        if how == "half":
            self.sock.shutdown(socket.SHUT_WR)
            return
        if how == "reset":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def send(self, *requests):
        self.sock.sendall(b"".join(requests))

    def read(self):
        """(status, head, body) of the next response."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.stream.readline()
            if not line:
                assert not head
                raise ConnectionResetError("the server has hung up")
            head += line
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        return int(head.split()[1]), head, self.stream.read(int(lines[b"content-length"]))

    def ask(self, *requests):
        """All responses to requests that are sent at a time."""
        self.send(*requests)
        return [self.read() for _ in requests]

    def teach(self, *requests, count=100):
        """Have requests known; their last responses."""
        for _ in range(count):
            answers = [self.ask(request)[0] for request in requests]
        return answers


def _values_of(answer):
    status, head, body = answer
    assert status == 200, body
    lead = next(
        int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"Inference-Header-Content-Len")
    )
    return list(struct.unpack(f"<{(len(body) - lead) // 4}i", body[lead:]))


def _counts(server, model):
    """(success, failures, inferences, executions) of a model."""
    (statistics,) = json.loads(server.request("GET", f"/v2/models/{model}/stats").body)["model_stats"]
    each = statistics["inference_stats"]
    return each["success"]["count"], each["fail"]["count"], statistics["inference_count"], statistics["execution_count"]


@pytest.fixture(scope="session")
def raw():
    """Requests to models of `raw.config` as bytes, and `raw.Client`, which sends them: see the functions above."""
    return SimpleNamespace(
        config=_echo_config,
        body_of=_body_of,
        post=_post,
        infer=_raw_infer,
        chunked=_raw_chunked,
        values_of=_values_of,
        counts=_counts,
        Client=RawClient,
    )
