# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""When connections are pinged, sent away and cut."""

import pytest

from pyruntime.runtime.frontends.grpc.keepalive import (
    HANDSHAKE_S_MAX,
    IDLE_PING_S_MIN,
    STALLED_S_MAX,
    Action,
    Keepalive,
)
from pyruntime.runtime.settings import ServerSettings


def keepalive(jitter=0.0, **settings):
    return Keepalive(ServerSettings(("/models",), **settings), 0.0, jitter)


def due(policy, now, has_calls=False, blocked=False, begun=True, waits=False):
    return policy.due(now, begun=begun, has_calls=has_calls, blocked=blocked, waits=waits)


def begun(**settings):
    policy = keepalive(**settings)
    policy.received(0.0)
    return policy


def test_a_client_that_says_nothing_is_cut():
    policy = keepalive()
    assert due(policy, HANDSHAKE_S_MAX - 1, begun=False) is Action.NOTHING
    policy.received(HANDSHAKE_S_MAX - 1)  # a part of it, which is not enough
    assert due(policy, HANDSHAKE_S_MAX, begun=False) is Action.CUT


def test_silence_is_pinged_and_an_answer_ends_it():
    policy = begun(grpc_keepalive_time_ms=10_000, grpc_keepalive_timeout_ms=2_000)
    assert due(policy, 9.9, has_calls=True) is Action.NOTHING
    assert due(policy, 10.0, has_calls=True) is Action.PING
    assert due(policy, 11.5, has_calls=True) is Action.NOTHING
    policy.received(11.5)
    assert due(policy, 12.1, has_calls=True) is Action.NOTHING
    assert due(policy, 21.5, has_calls=True) is Action.PING
    assert due(policy, 23.5, has_calls=True) is Action.CUT


def test_without_calls_there_are_no_pings_unless_permitted():
    assert due(begun(grpc_keepalive_time_ms=10_000), 100.0) is Action.NOTHING
    permitted = begun(grpc_keepalive_time_ms=10_000, grpc_keepalive_permit_without_calls=True)
    for now in (10.0, 20.0):
        assert due(permitted, now) is Action.PING
        permitted.received(now)
    assert due(permitted, 30.0) is Action.NOTHING  # two without data is enough
    permitted.said()
    assert due(permitted, 30.0) is Action.PING


def test_a_client_that_pings_too_often():
    """Two strikes are forgiven. Data makes up for them."""
    policy = begun(grpc_min_ping_interval_ms=1_000)
    assert [policy.client_pinged(now, True) for now in (0.0, 0.1, 0.2, 0.3)] == [False, False, False, True]
    policy = begun(grpc_min_ping_interval_ms=1_000)
    assert [policy.client_pinged(now, True) for now in (0.0, 1.0, 2.0, 3.0)] == [False] * 4
    policy = begun(grpc_min_ping_interval_ms=1_000)
    for now in (0.0, 0.1, 0.2):
        policy.client_pinged(now, True)
    policy.said()
    assert not policy.client_pinged(0.3, True)


@pytest.mark.parametrize(("permitted", "sent_away"), [(False, True), (True, False)])
def test_pings_without_calls(permitted, sent_away):
    policy = begun(grpc_min_ping_interval_ms=1_000, grpc_keepalive_permit_without_calls=permitted)
    times = [number * 2.0 for number in range(4)]
    assert policy.client_pinged(times[0], False) is False
    assert any(policy.client_pinged(now, False) for now in times[1:]) is sent_away
    assert times[-1] < IDLE_PING_S_MIN


def test_any_number_of_strikes_can_be_allowed():
    policy = begun(grpc_max_ping_strikes=0)
    assert not any(policy.client_pinged(number / 10, True) for number in range(100))


@pytest.mark.parametrize(("jitter", "age"), [(0.0, 10.0), (1.0, 11.0), (-1.0, 9.0)])
def test_age(jitter, age):
    """An old connection gets one GOAWAY, and is cut after its grace."""
    policy = keepalive(jitter, grpc_max_connection_age_ms=10_000, grpc_max_connection_age_grace_ms=5_000)
    policy.received(0.0)
    assert due(policy, age - 0.1) is Action.NOTHING
    assert due(policy, age) is Action.SHUT_DOWN
    assert due(policy, age + 0.1) is Action.NOTHING
    assert due(policy, age + 5.0) is Action.CUT


def test_age_without_end_of_grace():
    policy = begun(grpc_max_connection_age_ms=10_000)
    assert due(policy, 10.0) is Action.SHUT_DOWN
    assert due(policy, 1000.0) is Action.NOTHING


def test_a_client_that_opens_no_window_is_pinged():
    """One that is gone does not answer, and is cut; one that reads slowly answers."""
    policy = begun(grpc_keepalive_timeout_ms=2_000)
    assert due(policy, STALLED_S_MAX - 1, has_calls=True, waits=True) is Action.NOTHING
    assert due(policy, STALLED_S_MAX, has_calls=True) is Action.NOTHING
    assert due(policy, STALLED_S_MAX, has_calls=True, waits=True) is Action.PING
    policy.received(STALLED_S_MAX + 1)
    assert due(policy, STALLED_S_MAX + 2, has_calls=True, waits=True) is Action.NOTHING
    assert due(policy, 2 * STALLED_S_MAX + 1, has_calls=True, waits=True) is Action.PING
    assert due(policy, 2 * STALLED_S_MAX + 3, has_calls=True, waits=True) is Action.CUT


def test_pings_that_are_wanted_earlier():
    policy = begun(grpc_keepalive_time_ms=10_000)
    assert due(policy, 10.0, has_calls=True, waits=True) is Action.PING


def test_a_client_that_takes_nothing_is_cut():
    policy = begun()
    assert due(policy, 1.0, blocked=True) is Action.NOTHING
    assert due(policy, STALLED_S_MAX, blocked=True) is Action.NOTHING
    policy.took()
    assert due(policy, STALLED_S_MAX + 1, blocked=True) is Action.NOTHING
    assert due(policy, 2 * STALLED_S_MAX, blocked=False) is Action.NOTHING
    assert due(policy, 3 * STALLED_S_MAX, blocked=True) is Action.NOTHING
    assert due(policy, 4 * STALLED_S_MAX, blocked=True) is Action.CUT
