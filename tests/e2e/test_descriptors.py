# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models that do to their descriptors whatever the kernel allows: the server and all other models go on."""

import runpy

import pytest

from .harness.descriptors import CODE, DescriptorAttack

CALLS = list(runpy.run_path(str(CODE / "descriptors.py"))["CALLS"])
SEQUENCES = 40


@pytest.fixture(scope="module")
def attacked(tmp_path_factory, serving):
    """A server and the attack on it."""
    repository = tmp_path_factory.mktemp("attacked")
    attack = DescriptorAttack(repository)
    with serving(repository, *attack.OPTIONS) as server:
        yield server, attack


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("hang_up", [False, True], ids=["answered", "hung up"])
def test_each_call(attacked, call, hang_up):
    """One system call on each descriptor with all choices of its arguments."""
    server, attack = attacked
    attack.run(server, call=call, hang_up=hang_up)


def test_sequences(attacked):
    """Sequences of them. An error names the seed of its sequence; tests/attack has other ones each time."""
    server, attack = attacked
    for seed in range(SEQUENCES):
        attack.run(server, seed=seed, hang_up=seed % 4 == 0)
