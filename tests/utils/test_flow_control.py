# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How far a sender may be ahead: by example, and against a model that keeps a list."""

from hypothesis import given
from hypothesis import strategies as st

from pyruntime.utils.flow_control import BYTES_AHEAD_MAX, RESPONSES_AHEAD_MAX, FlowControl


def test_a_request_that_nobody_has_answered():
    """The first response to any request may be sent."""
    flow = FlowControl()
    assert flow.may_send(1)
    flow.sent(1, 8)
    assert flow.may_send(2)


def test_so_many_responses():
    """After so many that are not taken the sender waits; for each that is taken it may send another."""
    flow = FlowControl()
    for _ in range(RESPONSES_AHEAD_MAX):
        assert flow.may_send(1)
        flow.sent(1, 0)
    assert not flow.may_send(1)
    flow.credit(1, 1)
    assert flow.may_send(1)
    flow.sent(1, 0)
    assert not flow.may_send(1)
    flow.credit(1, RESPONSES_AHEAD_MAX)
    assert flow.may_send(1)


def test_so_many_bytes():
    """Large responses fill the window sooner."""
    flow = FlowControl()
    flow.sent(1, BYTES_AHEAD_MAX - 1)
    assert flow.may_send(1)
    flow.sent(1, 1)
    assert not flow.may_send(1)
    flow.credit(1, 1)
    assert flow.may_send(1)


def test_one_that_is_larger_than_the_window():
    """However large a response is, it may be sent when none is ahead of it."""
    flow = FlowControl()
    flow.sent(1, 10 * BYTES_AHEAD_MAX)
    assert not flow.may_send(1)
    flow.credit(1, 1)
    assert flow.may_send(1)


def test_more_taken_than_sent():
    """Credit for more responses than were sent does not allow further responses ahead."""
    flow = FlowControl()
    flow.credit(1, 5)
    for _ in range(RESPONSES_AHEAD_MAX):
        flow.sent(1, 0)
    flow.credit(1, 2 * RESPONSES_AHEAD_MAX)
    for _ in range(RESPONSES_AHEAD_MAX):
        flow.sent(1, 0)
    assert not flow.may_send(1)


def test_end():
    """A request that has ended is forgotten: it need not wait, and leaves no state."""
    flow = FlowControl()
    for _ in range(RESPONSES_AHEAD_MAX):
        flow.sent(1, BYTES_AHEAD_MAX)
    flow.end(1)
    assert flow.may_send(1)
    flow.credit(1, 3)
    flow.end(1)
    flow.end(2)
    assert flow._sizes == flow._bytes == {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("sent"), st.integers(1, 2), st.sampled_from([0, 1, BYTES_AHEAD_MAX // 3, BYTES_AHEAD_MAX])),
        st.tuples(st.just("taken"), st.integers(1, 2), st.integers(0, RESPONSES_AHEAD_MAX)),
        st.tuples(st.just("end"), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("many"), st.integers(1, 2), st.integers(1, RESPONSES_AHEAD_MAX)),
    )
)


@given(STEPS)
def test_any_steps(steps):
    """A window is open unless so many, or so much, is ahead."""
    flow = FlowControl()
    ahead = {1: [], 2: []}
    for kind, serial, value in steps:
        if kind == "sent":
            flow.sent(serial, value)
            ahead[serial].append(value)
        elif kind == "taken":
            flow.credit(serial, value)
            del ahead[serial][:value]
        elif kind == "end":
            flow.end(serial)
            ahead[serial].clear()
        else:
            for _ in range(value):
                flow.sent(serial, 1)
            ahead[serial] += [1] * value
        for each, sizes in ahead.items():
            is_full = len(sizes) >= RESPONSES_AHEAD_MAX or sum(sizes) >= BYTES_AHEAD_MAX
            assert flow.may_send(each) == (not sizes or not is_full)
