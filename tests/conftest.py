# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The basis of all tests: ports of their own, and the plugins of plugins/."""

import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from .plugins import bytecode, examples, fast_path, gpus, libraries, outcomes, processes, pythons, regions

examples.load()
# Their assertions say as much as those of tests.
pytest.register_assert_rewrite("tests.e2e.harness")


def pytest_addoption(parser):
    fast_path.add_options(parser)
    outcomes.add_options(parser)


def pytest_configure(config):
    for plugin in (bytecode, fast_path, gpus, libraries, outcomes, processes, pythons, regions):
        config.pluginmanager.register(plugin)


def pytest_collection_finish():
    """Have the garbage collector look no more at all that was imported and collected: thousands of tests run it."""
    gc.collect()
    gc.freeze()


@contextmanager
def _reserve_ports(count: int) -> Iterator[list[int]]:
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for sock in found:
            sock.bind(("", 0))  # at every address: a server may open the port at all of them
            # Only now: others that ask for any port must not be given this one, a server that asks for it must.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield [sock.getsockname()[1] for sock in found]


@pytest.fixture(scope="session")
def reserve_ports():
    """`with reserve_ports(count) as ports`: ports that a server can open, and that are not given to others meanwhile.

    A port that is only looked up can be another server's when ours comes to open it, and answer our questions.
    """
    return _reserve_ports
