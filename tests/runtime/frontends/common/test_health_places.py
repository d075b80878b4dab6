# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.frontends.common.health_places import (
    HEALTH_CONNECTIONS_MAX,
    PEER_CONNECTIONS_MAX,
    HealthPlaces,
    peer_of,
)


class Connection:
    """A connection beyond the limit that has not asked yet."""

    def __init__(self):
        self.is_silent = True
        self.gave_way = False

    def give_way(self):
        self.gave_way = True


@pytest.fixture
def places():
    return HealthPlaces()


@pytest.fixture
def connect(places):
    """`connect(peer, count)`: the new connections of a peer, each with a place."""

    def make(peer, count):
        made = [Connection() for _ in range(count)]
        for each in made:
            assert places.take(each, peer)
        return made

    return make


def test_there_are_places_until_all_are_taken(places, connect):
    for number in range(HEALTH_CONNECTIONS_MAX):
        connect(f"10.0.0.{number}", 1)
    assert len(places) == HEALTH_CONNECTIONS_MAX


def test_the_one_that_was_silent_for_longest_gives_way(places, connect):
    made = [connect(f"10.0.0.{number}", 1)[0] for number in range(HEALTH_CONNECTIONS_MAX)]
    made[0].is_silent = False
    connect("10.0.1.0", 1)
    assert [each for each in made if each.gave_way] == [made[1]]
    assert len(places) == HEALTH_CONNECTIONS_MAX


def test_who_has_asked_is_never_sent_away(places, connect):
    made = [connect(f"10.0.0.{number}", 1)[0] for number in range(HEALTH_CONNECTIONS_MAX)]
    for each in made:
        each.is_silent = False
    assert not places.take(Connection(), "10.0.1.0")
    assert not any(each.gave_way for each in made)


def test_a_place_that_is_left_is_free(places, connect):
    made = connect("10.0.0.1", 1) + [connect(f"10.0.1.{at}", 1)[0] for at in range(HEALTH_CONNECTIONS_MAX - 1)]
    for each in made:
        each.is_silent = False
    for _ in range(2):
        places.leave(made[0])
    assert len(places) == HEALTH_CONNECTIONS_MAX - 1
    connect("10.0.0.1", 1)


def test_the_peer_with_most_connections_loses_one(places, connect):
    """A prober that is slow to ask keeps its place, however many others of one peer come after it."""
    prober = connect("10.0.0.1", 1)[0]
    crowd = connect("10.0.0.2", 300)
    assert not prober.gave_way
    assert sum(not each.gave_way for each in crowd) == PEER_CONNECTIONS_MAX
    others = [connect(f"10.0.1.{at}", 1)[0] for at in range(2 * HEALTH_CONNECTIONS_MAX)]
    assert sum(not each.gave_way for each in [prober, *crowd, *others]) == HEALTH_CONNECTIONS_MAX


def test_a_peer_takes_no_place_of_one_that_has_fewer(places, connect):
    """Also while all its own connections have just sent something."""
    prober = connect("10.0.0.1", 1)[0]
    crowds = connect("10.0.0.3", HEALTH_CONNECTIONS_MAX // 2) + connect("10.0.0.2", HEALTH_CONNECTIONS_MAX // 2 - 1)
    for each in crowds:
        each.is_silent = False
    assert not places.take(Connection(), "10.0.0.2")
    assert not prober.gave_way


def test_questions_of_one_peer_leave_places_to_others(places, connect):
    """A peer whose questions all wait for an answer gets no more places, and others do."""
    for each in connect("10.0.0.2", PEER_CONNECTIONS_MAX):
        each.is_silent = False
    assert not places.take(Connection(), "10.0.0.2")
    connect("10.0.0.1", HEALTH_CONNECTIONS_MAX - PEER_CONNECTIONS_MAX)


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("10.0.0.1", 5000), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5000, 0, 0), "10.0.0.1"),
        (("2001:db8:0:1:2:3:4:5", 5000, 0, 0), "2001:db8:0:1::"),
        (("2001:db8:0:1::9", 5000, 0, 0), "2001:db8:0:1::"),
        (("fe80::1%eth0", 5000, 0, 2), "fe80::"),
        ("", ""),
        (None, ""),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_one_site(address, peer):
    """One host may use any address of its network of IPv6. Clients of a UNIX socket have no address."""
    assert peer_of(address) == peer
