# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The budget for bytes that are not in request memory: who gets them, who waits, and who is refused."""

import random

import pytest

from pyruntime.runtime.inference.pending_bytes import (
    DEFAULT_BYTES_MAX,
    DEFAULT_BYTES_MIN,
    WAIT_S_MAX,
    PendingBytes,
    PendingBytesError,
    default_limit,
)
from pyruntime.runtime.inference.turns import Turns
from pyruntime.utils.errors import Code

MIB = 1 << 20
GIB = 1 << 30


class Outcomes(list):
    """The outcomes of the claims' waits, in order: (name, whether the claim got its bytes)."""

    def of(self, name):
        return lambda failure: self.append((name, failure is None))


@pytest.fixture
def turns():
    return Turns(1)


@pytest.fixture
def pending(turns):
    return PendingBytes(100, turns)


@pytest.fixture
def outcomes():
    return Outcomes()


def claims(pending, count):
    """Claims of as many connections."""
    return [pending.share().claim() for _ in range(count)]


def test_take_and_give_back(pending):
    """Bytes that a claim takes count for its connection and for all; bytes that it gives back are free again."""
    share = pending.share()
    first, second = share.claim(), share.claim()
    first.take(20)
    second.take(30)
    assert (first.held, second.held, share.used, pending.used) == (20, 30, 50, 50)
    first.give_back(5)
    assert (first.held, share.used, pending.used) == (15, 45, 45)
    second.end()
    second.end()
    assert (second.held, share.used, pending.used) == (0, 15, 15)


def test_limit_of_a_connection(pending):
    """One connection may hold half of the budget; the refusal is 503 and names the option."""
    share, other = pending.share(), pending.share()
    share.claim().take(50)
    claim = share.claim()
    with pytest.raises(
        PendingBytesError, match=r"connection's requests need more than 50 bytes .* --max-pending"
    ) as info:
        claim.take(1)
    assert info.value.code is Code.UNAVAILABLE
    assert claim.held == 0
    with pytest.raises(PendingBytesError, match="--max-pending-bytes"):
        claim.take_or_wait(1, pytest.fail)
    assert not claim.waits
    other.claim().take(50)


def test_limit_of_all(pending):
    """All connections together may hold the budget, to the byte."""
    first, second, third = claims(pending, 3)
    first.take(50)
    second.take(49)
    third.take(1)
    with pytest.raises(PendingBytesError, match=r"of all clients .* --max-pending-bytes"):
        third.take(1)
    assert pending.used == 100


def test_claims_wait_in_order(pending, outcomes):
    """Claims that wait get their bytes in the order in which they began to, as soon as there is room for the first."""
    first, second, third, fourth = claims(pending, 4)
    first.take(50)
    second.take(50)
    assert not third.take_or_wait(30, outcomes.of("third"))
    assert not fourth.take_or_wait(10, outcomes.of("fourth"))
    first.give_back(20)
    assert outcomes == []  # there is room for the fourth, which must not overtake the third
    first.give_back(10)
    assert outcomes == [("third", True)]
    second.end()
    assert outcomes == [("third", True), ("fourth", True)]
    assert (third.held, fourth.held, pending.used) == (30, 10, 60)


def test_a_new_body_does_not_overtake(pending, outcomes):
    """A claim that holds nothing waits behind the others, even if it is small; one that is under way goes on."""
    first, second, third, fourth = claims(pending, 4)
    first.take(50)
    second.take(40)
    assert not third.take_or_wait(20, outcomes.of("third"))
    assert not fourth.take_or_wait(5, outcomes.of("fourth"))
    assert second.take_or_wait(10, pytest.fail)
    second.end()
    assert outcomes == [("third", True), ("fourth", True)]


def test_end_of_a_wait(pending, outcomes):
    """A claim that ends while it waits is forgotten, and those behind it get their turn."""
    first, second, third, fourth = claims(pending, 4)
    first.take(50)
    second.take(40)
    third.take_or_wait(20, outcomes.of("third"))
    fourth.take_or_wait(10, outcomes.of("fourth"))
    third.end()
    assert outcomes == [("fourth", True)]
    assert not third.waits
    assert pending.used == 100


def test_refusal_of_a_wait(pending, outcomes):
    """A claim that has waited for too long is refused, and keeps what it holds until its end."""
    first, second, third = claims(pending, 3)
    first.take(50)
    second.take(45)
    third.take(5)
    assert not third.take_or_wait(5, outcomes.of("third"))
    third.refuse()
    third.refuse()
    assert outcomes == [("third", False)]
    assert third.held == 5


def test_claims_that_wait_for_each_other(pending, outcomes):
    """If those that wait hold everything, the last of them is refused, so that the first can go on."""
    first, second, third = claims(pending, 3)

    def refused(failure):
        outcomes.append(("third", failure is None))
        third.end()

    for claim in (first, second, third):
        claim.take(33)
    assert not first.take_or_wait(10, outcomes.of("first"))
    assert not second.take_or_wait(10, outcomes.of("second"))
    assert outcomes == []
    assert not third.take_or_wait(10, refused)
    assert outcomes == [("third", False), ("first", True), ("second", True)]
    assert pending.used == 86


class TestTurns:
    """Requests that have their turn wait for room that is held by those which wait for theirs."""

    def test_one_waits_for_room(self, pending, turns, outcomes):
        """Nobody is refused while a body that arrives may give room; then the last one that waits for room is."""
        first, second, body = claims(pending, 3)
        first.take(40)
        second.take(50)
        body.take(10)
        assert turns.turn().take(first, pytest.fail)
        assert not turns.turn().take(second, pytest.fail)
        assert not first.take_or_wait(10, outcomes.of("first"))
        assert outcomes == []  # the body may end, and then there is room
        assert not body.take_or_wait(30, outcomes.of("body"))
        assert outcomes == [("body", False)]  # it is the last one that waits for room
        body.end()
        assert outcomes == [("body", False), ("first", True)]

    def test_it_waits_alone(self, pending, turns, outcomes):
        """The only one that waits for room is refused at once if the others wait for its turn."""
        first, second, third = claims(pending, 3)
        first.take(10)
        second.take(50)
        third.take(40)
        begun = turns.turn()

        def refused(failure):
            outcomes.append(("first", failure is None))
            first.end()
            begun.end()

        assert begun.take(first, pytest.fail)
        assert not turns.turn().take(second, lambda: outcomes.append("second"))
        assert not turns.turn().take(third, lambda: outcomes.append("third"))
        assert not first.take_or_wait(10, refused)
        assert outcomes == [("first", False), "second"]

    def test_the_last_one_begins_to_wait_for_its_turn(self, pending, turns, outcomes):
        """It is noticed when the last request that held bytes otherwise waits for its turn."""
        first, second, new = claims(pending, 3)
        first.take(50)
        second.take(50)
        begun, waiting = turns.turn(), turns.turn()
        assert begun.take(new, pytest.fail)
        assert not new.take_or_wait(10, outcomes.of("new"))
        assert not waiting.take(first, pytest.fail)
        assert outcomes == []
        assert not turns.turn().take(second, pytest.fail)
        assert outcomes == [("new", False)]  # it holds nothing but the turn

    def test_one_that_has_its_turn_works(self, pending, turns, outcomes):
        """As long as it does, those that wait are not refused, even if it holds no bytes."""
        first, second, working = claims(pending, 3)
        first.take(50)
        second.take(50)
        begun, waiting = turns.turn(), turns.turn()
        assert begun.take(working, pytest.fail)
        assert not waiting.take(first, lambda: outcomes.append("first"))
        new = pending.share().claim()
        assert not new.take_or_wait(10, outcomes.of("new"))
        assert not turns.turn().take(second, pytest.fail)
        working.end()
        assert outcomes == []
        begun.end()
        assert outcomes == ["first"]


def test_connection_that_took_more_while_it_waited(pending, outcomes):
    """A claim whose connection reaches its limit during the wait is refused: others do not wait for that connection."""
    share = pending.share()
    first, second, other = share.claim(), share.claim(), pending.share().claim()
    other.take(50)
    first.take(40)
    filler, last = claims(pending, 2)
    filler.take(5)
    assert not second.take_or_wait(10, outcomes.of("second"))
    assert not last.take_or_wait(10, outcomes.of("last"))
    first.take(5)
    other.end()
    assert outcomes == [("second", False), ("last", True)]


def test_callbacks_may_use_the_budget(pending, outcomes):
    """A callback may end its claim: however many wait, they are served one after the other, without recursion."""
    holder, other, *waiting = claims(pending, 5000)
    holder.take(50)
    other.take(50)
    for claim in waiting:

        def go_on(failure, claim=claim):
            outcomes.append(failure)
            claim.end()

        claim.take_or_wait(50, go_on)
    holder.end()
    assert outcomes == [None] * len(waiting)
    assert pending.used == 50


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost(seed):
    """For all actions of claims, the limits hold, every wait ends, and no bytes are taken in the end."""
    chance = random.Random(seed)
    pending = PendingBytes(100, Turns(1))
    shares = [pending.share() for _ in range(5)]
    open_claims, waits, ends = [], 0, []
    for _ in range(2000):
        if len(open_claims) < 30:
            open_claims.append(shares[chance.randrange(5)].claim())
        claim = chance.choice(open_claims)
        action = chance.randrange(4)
        if action < 2 and not claim.waits:
            try:
                waits += not claim.take_or_wait(chance.randrange(1, 40), ends.append)
            except PendingBytesError:
                action = 3
        if action == 2 and not claim.waits and claim.held:
            claim.give_back(chance.randrange(1, claim.held + 1))
        if action == 3:
            waits -= claim.waits
            claim.end()
            open_claims.remove(claim)
        assert pending.used == sum(claim.held for claim in open_claims) <= 100
        assert sum(share.used for share in shares) == pending.used
        assert all(share.used <= 50 for share in shares)
        waiting = [claim for claim in open_claims if claim.waits]
        assert len(ends) + len(waiting) == waits
        assert not waiting or pending.used > sum(claim.held for claim in waiting)
    for claim in open_claims:
        claim.end()
    assert pending.used == 0
    assert repr(pending) == "<PendingBytes 0 of 100, 0 claims wait>"


@pytest.mark.parametrize(
    ("memory", "limit"),
    [(256 * MIB, DEFAULT_BYTES_MIN), (4 * GIB, 512 * MIB), (1 << 40, DEFAULT_BYTES_MAX)],
)
def test_default(memory, limit):
    """An eighth of the memory, within bounds."""
    assert default_limit(memory) == limit


def test_check_refuses_what_waits_for_too_long(pending, outcomes):
    """A claim may wait for WAIT_S_MAX from the first check that sees it; the wait of each claim counts by itself."""
    holder, other, first, second = claims(pending, 4)
    holder.take(50)
    other.take(50)
    first.take_or_wait(10, outcomes.of("first"))
    pending.check(100.0)
    second.take_or_wait(10, outcomes.of("second"))
    pending.check(100.0 + WAIT_S_MAX - 1)
    assert outcomes == []
    pending.check(100.0 + WAIT_S_MAX)
    assert outcomes == [("first", False)]
    first.end()
    first.take_or_wait(10, outcomes.of("first"))
    pending.check(100.0 + 2 * WAIT_S_MAX)
    assert outcomes == [("first", False), ("second", False)]
