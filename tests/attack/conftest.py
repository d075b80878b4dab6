# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Servers to attack, and the table of what each attack did.

The short version, which is part of all tests, runs each attack once. `--attack-minutes=N` (`make attack MINUTES=N`)
adds the large attacks and those of test_long.py, and ends with the table of all findings.
"""

import random
import shutil
from contextlib import contextmanager
from functools import partial

import pytest

from ..e2e.harness import cgroups
from ..e2e.harness.server import start_and_stop
from ..e2e.harness.waiting import LIMIT_S, wait_until
from .harness import repository
from .harness.clients import Target
from .harness.instruments import Findings, descriptors, own_bytes, watching

TABLE = pytest.StashKey[dict[str, tuple[int, Findings]]]()
MIB = 1 << 20
# The memory that a server may keep after an attack: heaps have holes, and slots stay warm.
LEFT_BYTES_MAX = 64 * MIB


def pytest_addoption(parser):
    parser.addoption("--attack-minutes", type=float, default=0, help="attack for so long, and print a table")
    parser.addoption("--attack-seed", type=int, default=None, help="the seed of a run that failed")
    parser.addoption("--attack-measure", action="store_true", help="print the table, and let no bound fail a test")


def pytest_configure(config):
    config.stash[TABLE] = {}


def pytest_ignore_collect(collection_path, config):
    return True if collection_path.name == "test_long.py" and not config.getoption("--attack-minutes") else None


def pytest_terminal_summary(terminalreporter, config):
    if not (config.getoption("--attack-minutes") or config.getoption("--attack-measure")):
        return
    terminalreporter.section("attacks")
    line = "{:58} {:>9} {:>8} {:>8} {:>9} {:>9} {:>5}".format
    terminalreporter.write_line(line("attack", "KB sent", "gap ms", "CPU ms", "peak MiB", "left MiB", "fds"))
    for name, (sent, found) in config.stash[TABLE].items():
        times = (f"{1000 * found.longest_s:.0f}", f"{1000 * found.longest_cpu_s:.0f}")
        memory = (f"{found.peak_bytes / MIB:.0f}", f"{found.left_bytes / MIB:.0f}")
        terminalreporter.write_line(line(name, f"{sent / 1000:.0f}", *times, *memory, found.left_descriptors))


@pytest.fixture(scope="session")
def backends(install_backends):
    """The option that names the folder of the C++ backends of the repository."""
    return f"--backend-directory={install_backends(*repository.BACKENDS)}"


@pytest.fixture(scope="session")
def start_target(reserve_ports, tmp_path_factory, backends):
    """`with start_target(*options, **how) as server`: a server of models of every kind, or those of `write`."""

    @contextmanager
    def start_target(*options, write=repository.write_repository, **how):
        folder = tmp_path_factory.mktemp("attacked")
        write(folder)
        with start_and_stop(reserve_ports, folder, backends, *options, **how) as server:
            yield server
        shutil.rmtree(folder)

    return start_target


@pytest.fixture
def cgroup_of():
    """`cgroup_of(size)`: a command that executes another one with so much memory; skips where that may not be."""
    with cgroups.limiting_memory() as cgroup_of:
        yield cgroup_of


@pytest.fixture(scope="session")
def seed(request):
    """The seed of all generators of this run: one that is given, another one each time with --attack-minutes, or 0."""
    given = request.config.getoption("--attack-seed")
    if given is not None:
        return given
    return random.randrange(1 << 32) if request.config.getoption("--attack-minutes") else 0


def _settled(server, bytes_before, descriptors_before) -> bool:
    server.settle()
    return own_bytes(server) - bytes_before <= LEFT_BYTES_MAX and descriptors(server) <= descriptors_before


@pytest.fixture(scope="session")
def run_attack(request, seed):
    """`run_attack(server, name, run)`: attack, see that nothing of it is left, and return its Findings.

    Every model must answer rightly afterwards, as far as `check` asks. The server's own memory and its descriptors must
    be as before. That it took too long or too much is for the caller to judge.
    """
    table = request.config.stash[TABLE]
    measures = request.config.getoption("--attack-measure")
    checked = set()

    def run_attack(server, name, run, check=repository.check, more_seed=0):
        print(f"seed {seed}: repeat this with --attack-seed={seed}")
        if server.process.pid not in checked:  # after an attack it was, too
            check(server)
            checked.add(server.process.pid)
        server.settle()
        target = Target(server, seed + more_seed)
        before = own_bytes(server), descriptors(server)
        with watching(server) as found:
            run(target)
            server.settle()
        print(f"{name}: {target.sent} bytes sent, answers {dict(target.statuses)}\n{found}")
        check(server)
        try:
            wait_until(partial(_settled, server, *before), 3 if measures else LIMIT_S)
        except AssertionError:
            assert measures, (
                f"left: {own_bytes(server) - before[0]} bytes, {descriptors(server) - before[1]} descriptors"
            )
        found.left_bytes = own_bytes(server) - before[0]
        found.left_descriptors = descriptors(server) - before[1]
        sent, worst = table.get(name, (0, Findings()))
        table[name] = max(sent, target.sent), worst.worst(found)
        assert found.answers or measures
        assert "Traceback" not in server.log or measures
        return found

    return run_attack
