# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A stub runs under any Python that has numpy, with nothing of the server's packages in sight."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from pyruntime.runtime.regions import create_region
from pyruntime.utils.channel import HostChannel
from pyruntime.utils.messages import PROTOCOL_VERSION, Hello, Load, Log, Ready, Stop, Stopped

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = ROOT / "stub" / "bootstrap.py"
GROWTH_BYTES = 1 << 20

# Loads everything that a model can ask of us, and writes down what it sees.
MODEL = """
import importlib, json, os, pkgutil, sys
import numpy as np
import triton_python_backend_utils as pb_utils
import pyruntime.stub, pyruntime.utils

for package in (pyruntime.stub, pyruntime.utils):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        # The last three run in the host's own Python only.
        if found.name.rpartition(".")[2] not in ("bootstrap", "guardian", "launcher", "launching"):
            importlib.import_module(found.name)
try:
    import msgpack
    packs = os.path.dirname(msgpack.__file__)
except ImportError:
    packs = ""


class TritonPythonModel:
    def initialize(self, args):
        tensor = pb_utils.Tensor("TEXT", np.array([b"a", b"b"], dtype=np.object_))
        try:
            pyruntime.torch_allocator(1 << 20)
        except pb_utils.TritonModelException as exc:
            allocator = str(exc)
        seen = {
            "allocator": allocator,
            "version": "%d.%d" % sys.version_info[:2],
            "executable": sys.executable,
            "argv": sys.argv,
            "path": sys.path,
            "main": [name for name in vars(sys.modules["__main__"]) if not name.startswith("__")],
            "msgpack": packs,
            "numpy": np.__file__,
            "tensor": [each.decode() for each in tensor.as_numpy()],
            "inheritable": [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and inherited(int(fd))],
            "modules": [name for name in ("multiprocess", "setproctitle", "posix_ipc") if name in sys.modules],
        }
        with open(os.path.join(args["model_repository"], "seen.json"), "w") as file:
            json.dump(seen, file)

    def execute(self, requests):
        return []


def inherited(fd):
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # that of the list itself
"""


class Stub:
    """A stub that was started by its path, and the host's end of the conversation."""

    def __init__(self, process, sock):
        self.process = process
        self._sock = sock
        self._channel = HostChannel()

    def send(self, message):
        self._sock.sendall(self._channel.send(message))

    def next(self):
        """The next message that is not a log record. AssertionError, with the stub's output, if there is none."""
        while data := self._sock.recv(1 << 16):
            for message in self._channel.receive_data(data):
                if not isinstance(message, Log):
                    return message
        raise AssertionError(self.process.communicate()[0])


@contextlib.contextmanager
def started(python, name, **changes):
    """A stub under an interpreter, in an environment of its own."""
    with contextlib.ExitStack() as stack:
        ours, theirs = map(stack.enter_context, socket.socketpair())
        _, their_grants = map(stack.enter_context, socket.socketpair())
        regions = [create_region("a test"), create_region("a test")]
        for region in regions:
            stack.callback(region.close)
        read_fd, write_fd = os.pipe()
        output = stack.enter_context(open(read_fd, errors="replace"))
        arguments = {
            "name": name,
            "sock": theirs.fileno(),
            "grants": their_grants.fileno(),
            "output_fd": write_fd,
            "requests_fd": regions[0].fileno(),
            "responses_fd": regions[1].fileno(),
            "growth_bytes": GROWTH_BYTES,
            "msgpack": os.path.dirname(msgpack.__file__),
            **changes,
        }
        fds = [arguments[each] for each in ("sock", "grants", "output_fd", "requests_fd", "responses_fd")]
        process = subprocess.Popen(
            [python, BOOTSTRAP, json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=write_fd,
            stderr=write_fd,
            env={"PATH": os.environ["PATH"]},
            cwd=ROOT,
            pass_fds=fds,
            process_group=0,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        for each in (theirs, their_grants):
            each.close()
        os.close(write_fd)
        process.communicate = lambda: (output.read(), None)
        yield Stub(process, ours)


def title_of(pid):
    """The title of the process, as lists of processes show it."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def run_model(python, model_dir):
    """Run a stub from its Hello to its end; what its model has seen."""
    (model_dir / "1").mkdir(parents=True)
    (model_dir / "1" / "model.py").write_text(MODEL)
    location = {"model_dir": str(model_dir), "version": "1", "file": str(model_dir / "1" / "model.py")}
    args = {"model_repository": str(model_dir), "model_name": "m", "model_version": "1", "model_config": "{}"}
    args["model_instance_name"] = "m_0"
    with started(python, "m_0") as stub:
        hello = stub.next()
        assert isinstance(hello, Hello)
        assert hello.protocol == PROTOCOL_VERSION
        assert hello.pid == stub.process.pid
        assert title_of(hello.pid) == "triton_python_backend_stub m_0"
        stub.send(Load(location, args, 1, 1))
        assert isinstance(stub.next(), Ready)
        stub.send(Stop())
        assert isinstance(stub.next(), Stopped)
        assert stub.process.wait() == 0
    return json.loads((model_dir / "seen.json").read_text())


def check(seen, python, version):
    assert seen["version"] == version
    assert seen["executable"] == str(python)
    assert seen["argv"] == [""]
    assert seen["main"] == []
    assert seen["tensor"] == ["a", "b"]
    assert seen["allocator"].startswith("this instance is on no GPU")
    assert seen["inheritable"] == []
    host = Path(msgpack.__file__).parents[1]
    assert {str(ROOT), str(ROOT / "stub"), str(host)} & set(seen["path"]) == set()


def test_other_python(tmp_path, other_environment):
    """All of the stub works under every Python that there is, with its own numpy, and without our msgpack."""
    python = other_environment / "bin" / "python"
    seen = run_model(python, tmp_path / "m")
    check(seen, python, other_environment.name.partition("-")[2])
    assert seen["numpy"].startswith(str(other_environment))
    assert seen["msgpack"] == ""
    assert seen["modules"] == []


def environment(folder, *, msgpack_text=""):
    """A virtual environment of our own Python, with links to our numpy and perhaps a msgpack."""
    import numpy

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in Path(numpy.__file__).parents[1].glob("numpy*"):
        (packages / found.name).symlink_to(found)
    if msgpack_text:
        (packages / "msgpack").mkdir()
        (packages / "msgpack" / "__init__.py").write_text(msgpack_text)
    return folder / "bin" / "python", packages


def test_our_python(tmp_path):
    """A virtual environment of the server's own Python sees as little of the server's packages."""
    python, _ = environment(tmp_path / "env")
    seen = run_model(python, tmp_path / "m")
    check(seen, python, "{}.{}".format(*sys.version_info))
    assert seen["msgpack"] == ""


@pytest.mark.parametrize("text", ["version = (0, 6, 2)", "def packb(): pass", "raise ImportError('half of it')"])
def test_old_msgpack(tmp_path, text):
    """A msgpack that is too old for us stays the model's own."""
    python, packages = environment(tmp_path / "env", msgpack_text=text)
    seen = run_model(python, tmp_path / "m")
    assert seen["msgpack"] == ("" if "raise" in text else str(packages / "msgpack"))


def test_own_msgpack(tmp_path):
    """A msgpack that is new enough serves us both."""
    text = f"""
version = (1, 0, 0)
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "real", {msgpack.__file__!r}, submodule_search_locations=[{os.path.dirname(msgpack.__file__)!r}])
real = sys.modules["real"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)
from real import *
from real import Packer, Unpacker, UnpackException
"""
    python, packages = environment(tmp_path / "env", msgpack_text=text)
    seen = run_model(python, tmp_path / "m")
    assert seen["msgpack"] == str(packages / "msgpack")


def test_long_name(tmp_path):
    """The title takes no more room than the command line had, for any name of an instance."""
    python, _ = environment(tmp_path / "env")
    name = "ä" * 200
    with started(python, name) as stub:
        hello = stub.next()
        assert title_of(hello.pid) == f"triton_python_backend_stub {name}"
        assert Path(f"/proc/{hello.pid}/environ").read_bytes().startswith(b"PATH=")


def test_nothing_to_import_msgpack_from(tmp_path):
    """A failure before the stub runs is written to its output."""
    python, _ = environment(tmp_path / "env")
    with started(python, "m_0", msgpack=str(tmp_path)) as stub:
        with pytest.raises(AssertionError, match=r"FileNotFoundError: .*__init__\.py"):
            stub.next()
        assert stub.process.wait() == 1


@pytest.mark.parametrize("minor", [6, 7])
def test_too_old(minor):
    """An old Python gets a sentence."""
    installed = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = sorted(installed.glob(f"3.{minor}.*/bin/python"))
    if not found:
        pytest.skip(f"there is no Python 3.{minor} here")
    done = subprocess.run([found[0], BOOTSTRAP, "{}"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"models run under Python 3.8 or newer, and this is 3.{minor}.")
