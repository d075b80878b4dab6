# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Slots and credit go back to a stub with other messages, or when there is much of them."""

import pytest

from pyruntime.runtime.instances.stub.returns import (
    CREDIT_BYTES_WAITING_MAX,
    CREDITS_WAITING_MAX,
    RELEASE_BYTES_WAITING_MAX,
    RELEASES_WAITING_MAX,
)
from pyruntime.utils.errors import LocalError
from pyruntime.utils.messages import Credit, Infer, Release, Stopped


class TestRelease:
    def test_with_the_next_batch(self, stub):
        """Slots that were read go back with the next batch."""
        stub.connection.returns.release(64, 8)
        stub.connection.returns.release(128, 8)
        assert stub.hear() == []
        stub.connection.infer(1, [], at_once=False)
        stub.connection.infer(2, [], at_once=False)
        assert stub.hear() == [Infer(1, [], [64, 128]), Infer(2, [], [])]

    def test_when_there_are_many(self, stub):
        """Without one they go when there are many."""
        for slot in range(RELEASES_WAITING_MAX):
            assert stub.hear() == []
            stub.connection.returns.release(slot, 8)
        assert stub.hear() == [Release(list(range(RELEASES_WAITING_MAX)))]

    def test_when_they_are_large(self, stub):
        """Large releases are sent at once."""
        stub.connection.returns.release(0, RELEASE_BYTES_WAITING_MAX - 1)
        assert stub.hear() == []
        stub.connection.returns.release(64, 1)
        assert stub.hear() == [Release([0, 64])]
        stub.connection.returns.release(128, RELEASE_BYTES_WAITING_MAX - 1)
        assert stub.hear() == []

    def test_that_fit_no_frame(self, stub):
        """A batch that cannot be sent takes nothing with it."""
        stub.connection.returns.release(64, 8)
        with pytest.raises(LocalError):
            stub.connection.infer(1, [object()], at_once=False)
        stub.connection.infer(1, [], at_once=False)
        assert stub.hear() == [Infer(1, [], [64])]

    def test_to_a_stub_that_has_ended(self, stub):
        """Slots that are released after the stub has ended are not reported."""
        stub.connection.stop()
        stub.say(Stopped())
        stub.hear()
        for slot in range(3 * RELEASES_WAITING_MAX):
            stub.connection.returns.release(slot, 1 << 20)
        assert stub.hear() == []


class TestCredit:
    def test_when_there_are_many(self, stub):
        """A sender learns of what its client has taken when that is worth a message."""
        stub.connection.returns.credit(8, 8)
        for _ in range(CREDITS_WAITING_MAX):
            assert stub.hear() == []
            stub.connection.returns.credit(7, 8)
        assert stub.hear() == [Credit([[7, CREDITS_WAITING_MAX]])]
        for _ in range(CREDITS_WAITING_MAX - 1):
            stub.connection.returns.credit(7, 8)
        assert stub.hear() == []

    def test_when_they_are_large(self, stub):
        """Large responses are worth it sooner."""
        stub.connection.returns.credit(7, CREDIT_BYTES_WAITING_MAX - 1)
        assert stub.hear() == []
        stub.connection.returns.credit(7, 1)
        assert stub.hear() == [Credit([[7, 2]])]

    def test_of_one_that_has_ended(self, stub):
        """A request that has ended needs no credit, and the next request with its number begins anew."""
        for _ in range(CREDITS_WAITING_MAX - 1):
            stub.connection.returns.credit(7, 8)
        stub.connection.returns.forget_credit(7)
        stub.connection.returns.forget_credit(9)
        stub.connection.returns.credit(7, 8)
        assert stub.hear() == []

    def test_to_a_stub_that_has_ended(self, stub):
        """A stub that has ended gets no credit."""
        stub.connection.stop()
        stub.say(Stopped())
        stub.hear()
        for _ in range(CREDITS_WAITING_MAX):
            stub.connection.returns.credit(7, 8)
        assert stub.hear() == []
