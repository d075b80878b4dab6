# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Each attack against a server with default options: others are served meanwhile, and nothing of it is left.

A stall is judged by the CPU time that the server spends before it answers others, which a busy machine does not change
much: what once stalled it, did so for seconds.
"""

import pytest

from .harness import http1
from .harness.attacks import ATTACKS
from .harness.clients import Target

pytestmark = pytest.mark.processes

MIB = 1 << 20
# CPU seconds of the server between a question and its answer. All of its threads count.
STALL_CPU_S_MAX = 1.0
# The largest default budget for pending bytes, and the memory that may be used besides.
PEAK_BYTES_MAX = 1024 * MIB + 256 * MIB


@pytest.fixture(scope="module")
def start_again(start_target):
    """`start_again()`: the server of the module, a new one if the last attack has ended it."""
    running = []

    def start_again():
        if not running or running[-1][1].process.poll() is not None:
            context = start_target()
            running.append((context, context.__enter__()))
        return running[-1][1]

    yield start_again
    for context, _ in running:
        context.__exit__(None, None, None)


def pytest_generate_tests(metafunc):
    if "attack" in metafunc.fixturenames:
        option = metafunc.config.getoption
        wants_all = option("--attack-minutes") or option("--attack-measure")
        found = [attack for attack in ATTACKS if wants_all or not attack.long]
        metafunc.parametrize("attack", found, ids=[attack.name.replace("/", "_") for attack in found])


def test_attack(start_again, run_attack, attack, request):
    """See the module."""
    found = run_attack(start_again(), attack.name, attack.run)
    if request.config.getoption("--attack-measure"):
        return
    assert found.failures == 0
    assert found.longest_cpu_s < STALL_CPU_S_MAX
    assert found.peak_bytes < PEAK_BYTES_MAX


@pytest.mark.parametrize("case", range(len(http1.SMUGGLING)))
def test_smuggling(start_again, seed, case):
    """What servers have read differently has one answer, an error, and what comes behind is not read as a request.

    Chunks with a length are read: the error is that of their empty body.
    """
    headers, body = http1.SMUGGLING[case]
    target = Target(start_again(), seed)
    request = b"POST /v2/models/numbers/infer HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b" % (headers, body)
    statuses = target.http(request)
    assert len(statuses) == 1
    assert statuses[0] in ("400", "501")
