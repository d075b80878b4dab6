# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures that give tests real servers; harness/ has their parts.

A test takes `deploy` for a server of its own models, which it shares with other tests of its file; `serve` to start
servers of its own, where options matter, or how a server starts or ends; or `samples`, one server of the sample models
for the whole run.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import trustme

from pyruntime.runtime.instances.stub import instance
from tests.plugins.gpus import TWO_GPUS, StandInMachine

from .harness import cgroups, models, raw, waiting
from .harness.gpu_models import Notes
from .harness.gpu_regions import Region
from .harness.http2_client import BareClient
from .harness.server import SHOWN_LOG, Server, start_and_stop
from .harness.terminal import Terminal

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def serving(reserve_ports):
    """`with serving(repository, *options, ready=True, wrapper=(), port=0) as server`: stopped, cleanly, at the end."""
    return partial(start_and_stop, reserve_ports)


@pytest.fixture(scope="session")
def write_model():
    """`write_model(repository, name, code, config=IN_OUT, more="")`: a model's folder.

    `code` is model.py behind the usual imports; `config` is config.pbtxt, to which `more` is added. None is no file.
    """
    return models.write_model


@pytest.fixture(scope="session")
def samples(serving, tmp_path_factory) -> Iterator[Server]:
    """A server of the sample models. Tests may send it anything, but must not break a model.

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
    return partial(models.write_model, tmp_path)


@pytest.fixture
def serve(serving, tmp_path):
    """`serve(*options, ...)`: a server of tmp_path, started now and stopped, cleanly, at the end of the test."""
    with ExitStack() as servers:
        yield lambda *options, **how: servers.enter_context(serving(tmp_path, *options, **how))


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal: `serve(wrapper=terminal.wrapper)` starts a server at it."""
    made = Terminal()
    yield made
    made.close()


@pytest.fixture(scope="module")
def empty(serving, tmp_path_factory, request) -> Iterator[tuple[Server, Path]]:
    """A server without models, and its repository, for all tests of a file that take `deploy`.

    More options may be in DEPLOY_OPTIONS of the file.
    """
    repository = tmp_path_factory.mktemp("repository")
    options = getattr(request.module, "DEPLOY_OPTIONS", ())
    with serving(repository, "--model-control-mode=explicit", *options) as server:
        yield server, repository


@pytest.fixture
def deploy(empty, tmp_path) -> Iterator[Callable[[], Server]]:
    """`deploy()`: a server that the tests of a file share, with the models of tmp_path alone, loaded one by one.

    It starts much faster than one of `serve`. Its log begins with the test. At the end of the test its models are
    unloaded: a test must neither stop it, nor leave requests.
    """
    server, repository = empty
    begun = len(server.log)

    def load() -> Server:
        for folder in sorted(each for each in tmp_path.iterdir() if each.is_dir()):
            (repository / folder.name).symlink_to(folder)
            answer = server.request("POST", f"/v2/repository/models/{folder.name}/load", "{}")
            assert answer.status == 200, answer.body
        return replace(server, log_begin=begun)

    def has_ended() -> bool:
        """Whether nothing of a model is left, not even a process that was just to be started again."""
        rows = json.loads(server.request("POST", "/v2/repository/index", "{}").body)
        return server.stubs() == [] and all(row.get("state") != "UNLOADING" for row in rows)

    yield load
    try:
        for link in [each for each in repository.iterdir() if each.is_symlink()]:
            assert server.request("POST", f"/v2/repository/models/{link.name}/unload", "{}").status == 200
        waiting.wait_until(has_ended)
    finally:
        for path in [each for each in repository.iterdir() if not each.name.startswith(".log")]:
            path.unlink()
        # pytest shows it with a test that failed, and with no other.
        print(server.log[begun:][-SHOWN_LOG:])


# Executes a command of Python's in which limits of modules are others.
_WITH_LIMITS = """
import json, runpy, sys
from importlib import import_module
modules, limits = [import_module(each) for each in json.loads(sys.argv[1])], json.loads(sys.argv[2])
for name, value in limits.items():
    having = [each for each in modules if name in vars(each)]
    assert having, f"{modules} have no {name}"
    for each in having:
        setattr(each, name, value)
sys.argv = sys.argv[5:]
runpy.run_module("pyruntime", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="session")
def with_limits():
    """`serve(wrapper=with_limits(module, NAME=value))`: a server in which limits of a module are others.

    With several modules a limit is another one in each that has it.
    """

    def wrapper(*modules: ModuleType, **limits: object) -> tuple[str, ...]:
        names = json.dumps([each.__name__ for each in modules])
        return sys.executable, "-c", _WITH_LIMITS, names, json.dumps(limits)

    return wrapper


@pytest.fixture(scope="session")
def patient(with_limits):
    """`serve(wrapper=patient)`: a server that does not give up asking a model whether it is ready."""
    return with_limits(instance, IS_READY_TIMEOUT_S=600.0)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine with two GPUs of the stand-in, for all tests of a file: see tests/plugins/gpus.py."""
    with pytest.MonkeyPatch.context() as patch:
        yield StandInMachine(tmp_path_factory.mktemp("machine"), patch, *TWO_GPUS)


@pytest.fixture(scope="module")
def gpus(machine):
    """Its GPUs as this process, the client, uses them."""
    return machine.gpus()


@pytest.fixture(scope="module")
def server(serving, machine, repository):
    """A server of the file's `repository` on its `machine`, which takes memory of clients."""
    with serving(repository, "--allow-client-shm=true") as started:
        yield started


@pytest.fixture
def seen(repository):
    """`seen(model, name="seen")`: where a model of the file's `repository` found tensors since the last time.

    G is on the GPU, C in main memory: see harness/gpu_models.py.
    """
    return Notes(repository)


@pytest.fixture
def region(server, gpus):
    """`region(protocol, size, device=0)`: memory of this process that the file's `server` uses until the test ends.

    `gpus` may be the file's own, too.
    """
    made = []

    def make(protocol: ModuleType, size: int, device: int = 0) -> Region:
        made.append(Region(server, protocol, gpus[device], size))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture(scope="session")
def require_memory():
    """`require_memory(count)`: skip the test where fewer bytes of memory could be used now."""

    def require(needed: int) -> None:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        if available < needed:
            pytest.skip(f"needs {needed} bytes of memory, {available} are available")

    return require


@pytest.fixture
def cgroup_of():
    """`cgroup_of(size)`: a command that executes another one with so much memory; skips where that may not be."""
    with cgroups.limiting_memory() as cgroup_of:
        yield cgroup_of


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
    """`wait_until(condition, limit_s=120)`: poll until it is true, and return its value."""
    return waiting.wait_until


@pytest.fixture(scope="session")
def bare_client():
    """`with bare_client(port, window=None, context=None) as client`: see BareClient."""
    return BareClient


@pytest.fixture(scope="session", name="raw")
def raw_requests():
    """Requests to models of `raw.config` as bytes, and `raw.Client`, which sends them: see harness/raw.py."""
    return raw


@pytest.fixture(scope="session")
def own_environment(tmp_path_factory):
    """A virtual environment of this Python that has numpy and joblib, and nothing of ours."""
    folder = tmp_path_factory.mktemp("environments") / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for pattern in ("numpy*", "joblib*", "cloudpickle*"):
        for found in Path(np.__file__).parents[1].glob(pattern):
            (packages / found.name).symlink_to(found)
    return folder


@pytest.fixture(params=["forked", "environment"])
def python(request):
    """The parameters of a model in each kind of stub."""
    if request.param == "forked":
        return ""
    return models.parameters(EXECUTION_ENV_PATH=request.getfixturevalue("own_environment"))
