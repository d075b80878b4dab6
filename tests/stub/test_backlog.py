# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept for requests whose clients have no room."""

from pyruntime.stub.backlog import BYTES_KEPT_MAX, RESPONSES_KEPT_MAX, Backlog, Kept


def kept(size=8, final=False):
    return Kept(None, size, final)


def test_it_comes_out_in_order_and_by_request():
    backlog = Backlog()
    for size in (1, 2):
        backlog.add(7, kept(size))
    backlog.add(8, kept(3))
    assert backlog.first(7) == backlog.take(7) == kept(1)
    assert backlog.take(7) == kept(2)
    assert backlog.first(7) is None
    assert backlog.first(8) == kept(3)


def test_a_request_stays_until_it_is_removed():
    backlog = Backlog()
    backlog.add(7, kept())
    backlog.take(7)
    assert 7 in backlog
    assert backlog.remove(7) == []
    assert 7 not in backlog
    assert backlog.remove(7) == []


def test_what_is_removed_comes_back():
    backlog = Backlog()
    backlog.add(7, kept(1))
    backlog.add(7, kept(2, final=True))
    assert backlog.remove(7) == [kept(1), kept(2, final=True)]


def test_responses_and_bytes_have_a_limit():
    backlog = Backlog()
    for _ in range(RESPONSES_KEPT_MAX):
        assert not backlog.is_full(7)
        backlog.add(7, kept())
    assert backlog.is_full(7)
    backlog.take(7)
    assert not backlog.is_full(7)
    backlog.add(8, kept(BYTES_KEPT_MAX))
    assert backlog.is_full(8)
