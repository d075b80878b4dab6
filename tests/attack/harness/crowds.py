# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Many models and many clients of a server that may have few descriptors, and crashes of models meanwhile."""

import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from ...e2e.harness.models import ECHO, write_model
from ...e2e.harness.server import Server
from ...e2e.harness.waiting import wait_until
from . import repository
from .clients import Target

# The command that starts such a server.
FEW_DESCRIPTORS = ("prlimit", "--nofile=440:440")
# More than there are descriptors.
CLIENTS = 500
MODELS = [f"more{number}" for number in range(24)]


def write(folder: Path) -> None:
    """Write models of every kind, and MODELS."""
    repository.write_repository(folder)
    for name in MODELS:
        write_model(folder, name, ECHO)


def crash(instances: Iterable[str], target: Target) -> None:
    """Kill one instance after the other, each until it has another process, while clients hold all descriptors."""
    server = target.server
    with ExitStack() as stack:
        for number in range(CLIENTS):
            port = (server.port, server.grpc_port)[number % 2]
            with suppress(ConnectionError):
                stack.enter_context(target.connect(port))
        for name in instances:
            others = [stub for stub in server.stubs() if stub.title.split()[-1] != name]
            stub = server.stub(name)
            os.kill(stub.pid, signal.SIGKILL)
            wait_until(lambda stub=stub, name=name: [each for each in server.stubs(name) if each != stub])
            lost = set(others) - set(server.stubs())
            assert not lost, f"the crash of {name} ended {lost}"


def check(server: Server) -> None:
    """Every one of MODELS answers."""
    for name in MODELS:
        assert server.infer(name, {"IN": np.arange(3)}).as_numpy("OUT").tolist() == [0, 1, 2]
