# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The long version: malformed requests without number, attacks in a random order on one server, models that attack
their descriptors, crashes without descriptors to spare, and deaths and changes under load.

Each test can be run alone: scripts/attack MINUTES -k NAME. Not collected without --attack-minutes.
"""

import time
from functools import partial
from itertools import cycle, islice
from random import Random

import pytest

from ..e2e.harness.descriptors import DescriptorAttack
from ..e2e.harness.server import start_and_stop
from .harness import crowds, deaths
from .harness.attacks import ATTACKS, malformed_grpc, malformed_http
from .harness.bombs import MIB
from .harness.instruments import descriptors, used_bytes

pytestmark = [pytest.mark.processes, pytest.mark.timeout(0)]

REQUESTS = 1_000_000
# Of each round: three of four go to HTTP.
ROUND = 20_000
GROWTH_BYTES_MAX = 64 * MIB
SEQUENCES = 1000
LAUNCHES = 100


def test_malformed_without_end(start_target, run_attack, request):
    """A million malformed requests, and more as long as there is time, leave memory flat and no descriptor open."""
    deadline = time.monotonic() + 60 * request.config.getoption("--attack-minutes")
    with start_target() as server:
        sent, before = 0, None
        while sent < REQUESTS or time.monotonic() < deadline:
            for name, run, count in [
                ("malformed HTTP/1.1, without end", malformed_http, 3 * ROUND // 4),
                ("malformed HTTP/2, without end", malformed_grpc, ROUND // 4),
            ]:
                # Other requests in each round, and again the same ones with the same seed.
                found = run_attack(server, name, partial(run, count), more_seed=sent)
                assert found.failures == 0
                sent += count
            if before is None:  # heaps are warm now
                before = used_bytes(server), descriptors(server)
            print(f"{sent} requests: {used_bytes(server)} bytes, {descriptors(server)} descriptors")
        assert used_bytes(server) - before[0] < GROWTH_BYTES_MAX
        assert descriptors(server) <= before[1]


def test_attacks_in_any_order(start_target, run_attack, request, seed):
    """Attacks one after the other, for a quarter of the time."""
    deadline = time.monotonic() + 15 * request.config.getoption("--attack-minutes")
    with start_target() as server:
        before = used_bytes(server), descriptors(server)
        rounds = 0
        while time.monotonic() < deadline:
            attack = ATTACKS[(seed + 7919 * rounds) % len(ATTACKS)]
            assert run_attack(server, attack.name, attack.run, more_seed=rounds).failures == 0
            rounds += 1
        print(f"{rounds} attacks: {used_bytes(server) - before[0]} bytes more")
        assert descriptors(server) <= before[1]


def test_system_calls(start_target, seed):
    """A thousand random sequences of system calls of a model on its descriptors end no server and harm no model."""
    print(f"seed {seed}: repeat this with --attack-seed={seed}")
    random = Random(seed)
    attacks = []
    with start_target(*DescriptorAttack.OPTIONS, write=lambda to: attacks.append(DescriptorAttack(to))) as server:
        (attack,) = attacks
        for number in range(SEQUENCES):
            chosen = random.getrandbits(32)
            attack.run(server, seed=chosen, hang_up=chosen % 4 == 0)
            if number % 100 == 99:
                print(f"{number + 1} sequences, {len(server.stubs('attacker_0'))} attacker")


def test_launches(start_target, run_attack, seed):
    """A hundred launches while clients hold all descriptors lose no other model."""
    names = [f"{name}_0" for name in crowds.MODELS]
    Random(seed).shuffle(names)
    with start_target(wrapper=crowds.FEW_DESCRIPTORS, write=crowds.write) as server:
        crashed = list(islice(cycle(names), LAUNCHES))
        found = run_attack(server, "launches without descriptors", partial(crowds.crash, crashed))
        crowds.check(server)
    assert found.failures == 0


def test_deaths_and_changes(reserve_ports, tmp_path, request, seed):
    """Requests to models whose processes are killed and whose instances change are answered rightly, or with 503.

    None is answered as one to a model that is not there. A request that was with the process that died gets 500.
    """
    print(f"seed {seed}: repeat this with --attack-seed={seed}")
    until_s = time.monotonic() + 15 * request.config.getoption("--attack-minutes")
    deaths.write(tmp_path)
    with (
        start_and_stop(reserve_ports, tmp_path, "--model-control-mode=explicit", "--load-model=*") as server,
        deaths.clients(server) as answers,
    ):
        found = deaths.kill_and_change(server, tmp_path, Random(seed), until_s)
    print(f"{found[0]} deaths, {found[1]} changes: {dict(answers.counts)}\n{answers.errors}")
    assert answers.wrong == []
    assert set(answers.statuses()) <= {200, 500, 503}
