# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The memory that a stub sees: its request region, and regions of other models that the host grants.

And `host`: a worker in a thread, with the host's end of its socket in the test's hands; `broker`: that of a GPU.
"""

import asyncio
import json
import socket
import sys
import textwrap
import threading

import numpy as np
import pytest

from pyruntime.runtime.regions import create_region
from pyruntime.stub import gpus, pb_utils, stacks
from pyruntime.stub import host as host_module
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.memory import Regions
from pyruntime.stub.pb_utils import pooled
from pyruntime.stub.worker import Worker
from pyruntime.utils.channel import HostChannel, StubChannel
from pyruntime.utils.messages import PROTOCOL_VERSION, Hello, Infer, Load, Ready
from tests.patience import PATIENCE_S

from .gpu_broker import make_broker, write_tensor

COMMITTED_BYTES = 1 << 20
CONFIG = {"name": "m", "input": [], "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}]}
HEAD = "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n{}"


@pytest.fixture
def granting():
    """A function that has a stub's `regions` learn of another region, as the host does."""
    ours, theirs = socket.socketpair()

    def grant(*others):
        for other in others:
            socket.send_fds(ours, [other.number.to_bytes(8, "little")], [other.fileno()])

    grant.ours, grant.theirs = ours, theirs
    with ours, theirs:
        yield grant


@pytest.fixture
def regions(granting, new_region):
    """The regions of a stub. Its request region has 1 MiB of memory."""
    requests = new_region(COMMITTED_BYTES)
    made = Regions(requests, granting.theirs)
    made.set_number(requests.number)
    return made


@pytest.fixture
def other_region(new_region):
    """Another model's region, with 1 MiB of memory."""
    return new_region(COMMITTED_BYTES)


class Host:
    """The test's end of the socket. `died` is the exception of the worker, if any."""

    ARGS = {
        "model_config": json.dumps(CONFIG), "model_name": "m", "model_instance_name": "m_0", "model_version": "1",
        "model_repository": "/models/m",
    }  # fmt: skip

    def __init__(self, folder):
        self.folder = folder
        self.requests = create_region("requests of a test")
        self.responses = create_region("responses of a test")
        self.requests.commit(0, COMMITTED_BYTES)
        self.died = None
        self._sock, self._theirs = socket.socketpair()
        self._sock.settimeout(PATIENCE_S)
        self._channel = HostChannel()
        self._waiting = []
        self._serial = 1
        self.grants, self._their_grants = socket.socketpair()
        regions = Regions(self.requests, self._their_grants)
        self.worker = Worker("m_0", self._theirs, StubChannel(), regions, self.responses, COMMITTED_BYTES)
        self.worker.link.send(Hello(PROTOCOL_VERSION, 1, "3"))
        assert type(self.receive()) is Hello
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.worker.run()
        except BaseException as exc:
            self.died = exc
        finally:
            self._theirs.shutdown(socket.SHUT_RDWR)

    def send(self, *messages):
        self._sock.sendall(b"".join(map(self._channel.send, messages)))

    def receive(self):
        """The next message; None when the worker has hung up."""
        while not self._waiting:
            data = self._sock.recv(1 << 16)
            if not data:
                return None
            self._waiting.extend(self._channel.receive_data(data))
        return self._waiting.pop(0)

    def receive_all(self, *kinds):
        """The next messages, one of each of these kinds, in any order."""
        received = {}
        while len(received) < len(kinds):
            message = self.receive()
            assert type(message) in kinds, message
            assert type(message) not in received
            received[type(message)] = message
        return [received[kind] for kind in kinds]

    def ask(self, message):
        self.send(message)
        return self.receive()

    def location(self, source):
        version = self.folder / "m/1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(HEAD + textwrap.dedent(source))
        return {"model_dir": str(self.folder / "m"), "version": "1", "file": str(version / "model.py")}

    def load(self, source, concurrency=1, **config):
        args = {**self.ARGS, "model_config": json.dumps({**CONFIG, **config})}
        return self.ask(Load(self.location(source), args, concurrency, self.requests.number))

    def execute(self, body, **kwargs):
        """Load a model with this `execute`, which has `requests`."""
        source = MODEL.format(textwrap.indent(textwrap.dedent(body), "    " * 2))
        assert self.load(source, **kwargs) == Ready(False, False)

    def wire(self, values=(), at=0, outputs=None, parameters=""):
        """A request with one FP32 input of these values."""
        contents = np.array(values, np.float32).tobytes()
        self.requests.map[at : at + len(contents)] = contents
        return ["", 0, 0, 0, outputs, parameters, [["IN", "FP32", [len(values)], at, len(contents), 0, 0]], "", None]

    def post(self, *wires, released=()):
        """Post a batch; the serial of its first request."""
        batch = self._serial
        self._serial += len(wires)
        self.send(Infer(batch, list(wires), list(released)))
        return batch

    def infer(self, *wires, released=()):
        self.post(*wires, released=released)
        return self.receive()

    def array(self, tensor):
        _, datatype, shape, offset, size, _, _ = tensor
        assert datatype == "FP32"
        return np.frombuffer(self.responses.map[offset : offset + size], np.float32).reshape(shape).tolist()

    def values(self, response):
        """The one output of a response that is a success."""
        code, message, _, (tensor,), _ = response
        assert (code, message) == (-1, "")
        return self.array(tensor)

    def hang_up(self):
        self._sock.shutdown(socket.SHUT_RDWR)

    def join(self):
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def close(self):
        self._sock.close()
        self.join()
        for end in (self._theirs, self.grants, self._their_grants):
            end.close()
        self.requests.close()
        self.responses.close()


@pytest.fixture
def _interpreter(monkeypatch):
    """Leave sys.path and sys.modules as they were found; models find pb_utils, and no server but their own."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb_utils)
    monkeypatch.setattr(stacks, "install", lambda *names: None)  # it is for a process of its own
    path, modules = list(sys.path), set(sys.modules)
    before = host_module.set_host(None)
    yield
    host_module.set_host(before)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def _captured(caplog):
    """The stub's own logger is outside the hierarchy that caplog listens to."""
    LOGGER.addHandler(caplog.handler)
    yield
    LOGGER.removeHandler(caplog.handler)


@pytest.fixture
def loops(monkeypatch):
    """The event loops that are made during a test."""
    made = []
    real = asyncio.new_event_loop

    def new_event_loop():
        made.append(real())
        return made[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", new_event_loop)
    yield made
    for loop in made:
        loop.close()


@pytest.fixture
def hosts(tmp_path, _interpreter, _captured, loops):
    """A function that makes a host. The caller must close the host."""
    return lambda: Host(tmp_path)


@pytest.fixture
def host(hosts):
    made = hosts()
    yield made
    made.close()


@pytest.fixture
def broker(machine, peers, monkeypatch):
    """See make_broker. This process has not used a GPU before."""
    monkeypatch.setattr(gpus, "opened", {})
    monkeypatch.setattr(gpus, "unsettled", set())
    monkeypatch.setattr(pooled, "unsettled", gpus.unsettled)
    monkeypatch.setattr(pooled, "opened", gpus.opened)
    return make_broker(peers())


@pytest.fixture
def written(broker):
    """See write_tensor."""
    return write_tensor(broker)
