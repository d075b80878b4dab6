# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Slots of an arena, over a backing that records its calls and fails on demand."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyruntime.utils import arena as arena_module
from pyruntime.utils.arena import (
    ALIGNMENT,
    BARE_BYTES_MIN,
    COOLED_BYTES,
    KEEP_BYTES,
    LARGE_BYTES,
    PAGE_BYTES,
    SLOT_BYTES_MIN,
    Arena,
    Backing,
    slot_bytes,
)
from pyruntime.utils.errors import LocalError, OutOfMemoryError

GROWTH = 1 << 20


class Recorder(Backing):
    """Remembers which bytes exist, and refuses to make more than `room` of them."""

    def __init__(self, limit=1 << 40, room=1 << 40):
        self.limit = limit
        self.room = room
        self.exists = set()  # numbers of 256-byte pieces; every size and offset here is a multiple of that
        self.calls = []
        self.is_coarse = limit > 1 << 30

    def check(self, size):
        if size > self.room:
            raise OutOfMemoryError("the test's memory is full")

    def commit(self, offset, size):
        self.calls.append(("commit", offset, size))
        assert size > 0
        assert 0 <= offset <= offset + size <= self.limit
        self._take(size)
        if not self.is_coarse:
            self.exists.update(range(offset // 256, -(-(offset + size) // 256)))

    def _take(self, size):
        self.check(size)
        self.room -= size

    def decommit(self, offset, size):
        self.calls.append(("decommit", offset, size))
        assert offset % PAGE_BYTES == 0
        self.room += size
        if not self.is_coarse:
            self.exists.difference_update(range(offset // 256, (offset + size) // 256))

    def has(self, offset, size):
        return all(piece in self.exists for piece in range(offset // 256, -(-(offset + size) // 256)))

    def taken(self):
        calls, self.calls = self.calls, []
        return calls


class TestSlotBytes:
    @given(st.integers(0, 1 << 45))
    def test_slack_is_at_most_a_fifth(self, size):
        """A slot is large enough, is aligned, and wastes at most a fifth of itself."""
        slot = slot_bytes(size)
        assert slot >= size
        assert slot % ALIGNMENT == 0
        if size > SLOT_BYTES_MIN:
            assert (slot - size) * 5 <= slot

    @given(st.integers(1, 1 << 45))
    def test_is_idempotent_and_grows(self, size):
        """A class is its own class, and no larger size has a smaller one."""
        assert slot_bytes(slot_bytes(size)) == slot_bytes(size)
        assert slot_bytes(size) <= slot_bytes(size + 1)

    def test_four_classes_to_a_doubling(self):
        """Between a power of two and the next there are four sizes."""
        assert sorted({slot_bytes(size) for size in range(1025, 2049)}) == [1280, 1536, 1792, 2048]

    @pytest.mark.parametrize("size", [0, 1, 255, 256])
    def test_smallest(self, size):
        """A slot has at least the smallest size."""
        assert slot_bytes(size) == SLOT_BYTES_MIN

    def test_large_slots_end_on_pages(self):
        """From LARGE_BYTES on a slot is whole pages, so that it can go cold alone."""
        assert all(slot_bytes(size) % PAGE_BYTES == 0 for size in range(LARGE_BYTES, 1 << 20, 999))


class TestSmallSlots:
    def test_first_one_grows_the_region(self):
        """The region grows by whole steps, not by slots."""
        backing = Recorder()
        arena = Arena(backing, GROWTH)
        offsets = [arena.allocate(100) for _ in range(4)]
        assert len(set(offsets)) == 4
        assert backing.calls == [("commit", 0, GROWTH)]
        assert arena.live == 4

    def test_grows_by_as_many_steps_as_it_takes(self):
        """One slot may need several steps at once."""
        backing = Recorder()
        Arena(backing, GROWTH).allocate(5 * GROWTH - 1)
        assert backing.calls == [("commit", 0, 5 * GROWTH)]

    def test_reserve_commits_ahead(self):
        """Memory that was reserved is not committed again."""
        backing = Recorder()
        arena = Arena(backing, GROWTH)
        arena.reserve(3 * GROWTH)
        arena.reserve(GROWTH)
        arena.allocate(2 * GROWTH)
        assert backing.calls == [("commit", 0, 3 * GROWTH)]
        assert arena.live == 1

    def test_freed_slot_serves_the_next_of_its_class(self):
        """A freed slot is used again, and by its own class only."""
        arena = Arena(Recorder(), GROWTH)
        first = arena.allocate(1000)
        arena.free(first)
        assert arena.allocate(2000) != first
        assert arena.allocate(900) == first

    def test_never_goes_cold(self):
        """However many small slots lie idle, their pages stay."""
        backing = Recorder()
        arena = Arena(backing, GROWTH, keep_bytes=0)
        for offset in [arena.allocate(LARGE_BYTES // 2) for _ in range(50)]:
            arena.free(offset)
        assert {call[0] for call in backing.calls} == {"commit"}


class TestLargeSlots:
    def test_stays_warm_below_the_limit(self):
        """Idle slots of up to `keep_bytes` keep their pages."""
        backing = Recorder()
        arena = Arena(backing, GROWTH, keep_bytes=2 * LARGE_BYTES)
        first, second = arena.allocate(LARGE_BYTES), arena.allocate(LARGE_BYTES)
        backing.taken()
        arena.free(first)
        arena.free(second)
        assert {arena.allocate(LARGE_BYTES), arena.allocate(LARGE_BYTES)} == {first, second}
        assert backing.calls == []

    def test_goes_cold_above_it_and_comes_back(self):
        """One more goes cold; when it is used again its pages are made anew, at the same place."""
        backing = Recorder()
        arena = Arena(backing, GROWTH, keep_bytes=LARGE_BYTES)
        first, second = arena.allocate(LARGE_BYTES), arena.allocate(LARGE_BYTES)
        backing.taken()
        arena.free(first)
        arena.free(second)
        assert backing.taken() == [("decommit", second, LARGE_BYTES)]
        assert arena.allocate(LARGE_BYTES) == first
        assert backing.taken() == []
        assert arena.allocate(LARGE_BYTES) == second
        assert backing.taken() == [("commit", second, LARGE_BYTES)]

    def test_reused_slot_no_longer_counts_as_idle(self):
        """A slot that is handed out again no longer counts as idle, so that another slot may stay committed."""
        backing = Recorder()
        arena = Arena(backing, GROWTH, keep_bytes=LARGE_BYTES)
        slots = [arena.allocate(LARGE_BYTES) for _ in range(2)]
        backing.taken()
        for _ in range(5):
            for slot in slots:
                arena.free(slot)
                assert arena.allocate(LARGE_BYTES) == slot
        assert backing.calls == []

    def test_starts_on_a_page(self):
        """A large slot shares no page with what lies before it."""
        arena = Arena(Recorder(), GROWTH)
        arena.allocate(1)
        assert arena.allocate(LARGE_BYTES) % PAGE_BYTES == 0

    def test_default_keeps_a_quarter_of_a_gigabyte(self):
        """By default as much stays warm as the named limit says, and no more."""
        backing = Recorder()
        arena = Arena(backing, GROWTH)
        slots = [arena.allocate(KEEP_BYTES // 4) for _ in range(5)]
        backing.taken()
        for slot in slots:
            arena.free(slot)
        assert backing.calls == [("decommit", slots[4], KEEP_BYTES // 4)]


class TestFailure:
    def test_region_is_full(self):
        """Beyond the region's size there is nothing, and the error has the numbers."""
        backing = Recorder(limit=GROWTH)
        arena = Arena(backing, GROWTH)
        with pytest.raises(OutOfMemoryError, match=f"{2 * GROWTH} bytes would be needed and it may hold {GROWTH}"):
            arena.allocate(2 * GROWTH)
        assert arena.live == 0
        assert arena.allocate(GROWTH) == 0

    def test_last_step_is_cut_at_the_limit(self):
        """The last step is no longer than the region has room for."""
        backing = Recorder(limit=GROWTH + PAGE_BYTES)
        arena = Arena(backing, GROWTH)
        arena.allocate(GROWTH)
        arena.allocate(256)
        assert backing.calls == [("commit", 0, GROWTH), ("commit", GROWTH, PAGE_BYTES)]

    def test_nothing_changes(self):
        """After a failure the arena allocates where it would have before."""
        backing = Recorder(room=GROWTH)
        arena = Arena(backing, GROWTH)
        first = arena.allocate(1000)
        before = repr(arena)
        with pytest.raises(OutOfMemoryError, match="the test's memory is full"):
            arena.allocate(2 * GROWTH)
        assert repr(arena) == before
        assert arena.live == 1
        assert arena.allocate(1000) == first + slot_bytes(1000)

    def test_reserve_fails_and_changes_nothing(self):
        """A reservation that fails leaves the region as it is."""
        backing = Recorder(room=GROWTH)
        arena = Arena(backing, GROWTH)
        with pytest.raises(OutOfMemoryError):
            arena.reserve(2 * GROWTH)
        arena.reserve(GROWTH)
        assert backing.room == 0

    def test_idle_slots_are_given_up_first(self):
        """When memory is short, what lies idle goes cold, and the allocation is tried again."""
        backing = Recorder(room=2 * GROWTH)
        arena = Arena(backing, GROWTH)
        arena.free(arena.allocate(2 * GROWTH))
        backing.taken()
        offset = arena.allocate(GROWTH)
        assert offset == 2 * GROWTH
        assert [call[0] for call in backing.taken()] == ["commit", "decommit", "commit"]

    def test_what_went_cold_for_another_comes_back(self):
        """A slot that was given up serves its class again once there is memory."""
        backing = Recorder(room=2 * GROWTH)
        arena = Arena(backing, GROWTH, keep_bytes=4 * GROWTH)
        arena.free(arena.allocate(2 * GROWTH))
        other = arena.allocate(GROWTH)
        with pytest.raises(OutOfMemoryError):
            arena.allocate(2 * GROWTH)
        backing.room = 2 * GROWTH
        assert arena.allocate(2 * GROWTH) == 0
        arena.free(other)

    def test_trim_that_gives_too_little(self):
        """If trimming does not free enough, the error stays and the idle slots are still known."""
        backing = Recorder(room=2 * GROWTH)
        arena = Arena(backing, GROWTH)
        arena.free(arena.allocate(2 * GROWTH))
        with pytest.raises(OutOfMemoryError):
            arena.allocate(3 * GROWTH)
        assert arena.live == 0
        assert arena.allocate(2 * GROWTH) == 0

    def test_a_cold_slot_that_cannot_come_back_stays_cold(self):
        """A cold slot is not lost when there is no memory for it."""
        backing = Recorder(room=GROWTH)
        arena = Arena(backing, GROWTH, keep_bytes=0)
        arena.free(arena.allocate(GROWTH))
        backing.room = 0
        for _ in range(2):
            with pytest.raises(OutOfMemoryError):
                arena.allocate(GROWTH)
        backing.room = GROWTH
        assert arena.allocate(GROWTH) == 0

    @pytest.mark.parametrize("offset", [64, -1, 10**9])
    def test_free_of_nothing(self, offset):
        """An offset without a slot cannot be freed."""
        arena = Arena(Recorder(), GROWTH)
        arena.allocate(1)
        with pytest.raises(LocalError, match=f"no slot is allocated at offset {offset}"):
            arena.free(offset)
        assert arena.live == 1

    def test_double_free(self):
        """A slot is freed once."""
        arena = Arena(Recorder(), GROWTH)
        offset = arena.allocate(1)
        arena.free(offset)
        with pytest.raises(LocalError):
            arena.free(offset)
        assert [arena.allocate(1), arena.allocate(1)] == [offset, offset + SLOT_BYTES_MIN]


class TestBareSlots:
    def test_has_no_pages(self):
        """The caller commits them, and later slots lie behind."""
        backing = Recorder()
        arena = Arena(backing, GROWTH)
        offset, bare = arena.allocate_bare(5 * GROWTH)
        assert bare == slot_bytes(5 * GROWTH)
        assert backing.calls == []
        behind = arena.allocate(100)
        assert behind == offset + bare
        assert backing.taken() == [("commit", behind, GROWTH)]

    def test_small_and_warm_ones_are_not_bare(self):
        """There is nothing to gain."""
        arena = Arena(Recorder(), GROWTH)
        assert arena.allocate_bare(BARE_BYTES_MIN // 2)[1] == 0
        warm = arena.allocate(BARE_BYTES_MIN)
        arena.free(warm)
        assert arena.allocate_bare(BARE_BYTES_MIN) == (warm, 0)

    def test_committed_one_is_freed_as_any_other(self):
        """It is warm."""
        backing = Recorder()
        arena = Arena(backing, GROWTH)
        offset, bare = arena.allocate_bare(GROWTH)
        backing.commit(offset, bare)
        arena.free(offset)
        assert arena.allocate_bare(GROWTH) == (offset, 0)

    def test_one_that_was_not_committed_is_cold(self):
        """Pages that it has in part are freed, and its addresses are used again."""
        backing = Recorder()
        arena = Arena(backing, GROWTH)
        offset, bare = arena.allocate_bare(GROWTH)
        arena.free(offset, is_bare=True)
        assert backing.taken() == [("decommit", offset, bare)]
        assert arena.allocate_bare(GROWTH) == (offset, bare)
        arena.free(offset, is_bare=True)
        assert arena.allocate(GROWTH) == offset
        assert ("commit", offset, bare) in backing.taken()

    def test_no_memory(self):
        """It is refused before anybody commits it, once what lies idle is given up."""
        backing = Recorder(room=2 * GROWTH)
        arena = Arena(backing, GROWTH)
        arena.free(arena.allocate(2 * GROWTH))
        assert arena.allocate_bare(GROWTH) == (2 * GROWTH, GROWTH)
        with pytest.raises(OutOfMemoryError, match="the test's memory is full"):
            arena.allocate_bare(4 * GROWTH)
        assert arena.live == 1

    def test_no_addresses(self):
        """A region has an end, here too."""
        arena = Arena(Recorder(limit=GROWTH), GROWTH)
        with pytest.raises(OutOfMemoryError, match="may hold"):
            arena.allocate_bare(2 * GROWTH)
        assert arena.allocate(GROWTH) == 0


def test_pages_are_freed_piece_by_piece():
    """The slot is used again when all of them are free, not before."""
    backing, soon = Recorder(), []
    arena = Arena(backing, GROWTH, keep_bytes=0, soon=soon.append)
    size = 2 * COOLED_BYTES + GROWTH
    slot = slot_bytes(size)
    first = arena.allocate(size)
    backing.taken()
    arena.free(first)
    assert backing.taken() == [("decommit", first, COOLED_BYTES)]
    assert arena.allocate(size) == first + slot
    backing.taken()
    while soon:
        soon.pop()()
    calls = backing.taken()
    assert sum(size for _, _, size in calls) == slot - COOLED_BYTES
    assert {size for _, _, size in calls[:-1]} == {COOLED_BYTES}
    assert arena.allocate(size) == first


class TestReclaim:
    def test_frees_what_is_in_no_slot(self):
        """Cold slots, and the memory behind the committed part, are freed again; used and warm slots are not."""
        backing = Recorder(limit=8 * GROWTH)
        arena = Arena(backing, GROWTH, keep_bytes=0)
        live = arena.allocate(LARGE_BYTES)
        cold = arena.allocate(LARGE_BYTES)
        small = arena.allocate(100)
        arena.free(cold)
        arena.free(small)
        backing.taken()
        arena.reclaim()
        assert backing.taken() == [("decommit", cold, LARGE_BYTES), ("decommit", GROWTH, 7 * GROWTH)]
        assert backing.has(live, LARGE_BYTES)
        assert backing.has(small, SLOT_BYTES_MIN)

    def test_of_a_full_region(self):
        """Behind a region that is committed whole there is nothing."""
        backing = Recorder(limit=GROWTH)
        arena = Arena(backing, GROWTH)
        arena.reserve(GROWTH)
        backing.taken()
        arena.reclaim()
        assert backing.taken() == []

    def test_begins_on_a_page(self):
        """A region that grows by other steps than pages keeps the page that it uses in part."""
        backing = Recorder(limit=4 * PAGE_BYTES)
        arena = Arena(backing, PAGE_BYTES + 256)
        arena.reserve(1)
        backing.taken()
        arena.reclaim()
        assert backing.taken() == [("decommit", 2 * PAGE_BYTES, 2 * PAGE_BYTES)]


def test_repr():
    """How full an arena is shows in its repr."""
    arena = Arena(Recorder(), GROWTH)
    arena.allocate(1)
    assert repr(arena) == f"<Arena [1 slots, {GROWTH} bytes committed]>"


def test_a_backing_must_do_its_part():
    """The base class does nothing itself."""
    for call in (Backing().commit, Backing().decommit):
        with pytest.raises(NotImplementedError):
            call(0, 1)
    with pytest.raises(NotImplementedError):
        Backing().check(1)


class Machine(RuleBasedStateMachine):
    """Any order of allocations, frees and shortages, where pages are freed at once or piece by piece."""

    def __init__(self):
        super().__init__()
        self._limits = pytest.MonkeyPatch()
        self._limits.setattr(arena_module, "BARE_BYTES_MIN", LARGE_BYTES)
        self._limits.setattr(arena_module, "COOLED_BYTES", 2 * LARGE_BYTES)

    def teardown(self):
        self._limits.undo()

    @initialize(room=st.integers(0, 64), keep=st.integers(0, 16), later=st.booleans())
    def start(self, room, keep, later):
        self.soon = []
        self.backing = Recorder(limit=48 * LARGE_BYTES, room=room * LARGE_BYTES)
        keep *= LARGE_BYTES
        self.arena = Arena(self.backing, LARGE_BYTES, keep, self.soon.append if later else None)
        self.live = {}
        self.bare = {}

    @rule(size=st.one_of(st.integers(0, 2000), st.integers(LARGE_BYTES - 1, 8 * LARGE_BYTES)))
    def allocate(self, size):
        before = repr(self.arena)
        try:
            offset = self.arena.allocate(size)
        except OutOfMemoryError:
            assert repr(self.arena) == before
            return
        self._add(offset, slot_bytes(size))

    @rule(size=st.integers(1, 8 * LARGE_BYTES))
    def allocate_bare(self, size):
        before = repr(self.arena)
        try:
            offset, bare = self.arena.allocate_bare(size)
        except OutOfMemoryError:
            assert repr(self.arena) == before
            return
        self._add(offset, slot_bytes(size))
        if bare:
            self.bare[offset] = bare

    @precondition(lambda self: self.bare)
    @rule(data=st.data())
    def commit(self, data):
        offset = data.draw(st.sampled_from(sorted(self.bare)))
        try:
            self.backing.commit(offset, self.bare[offset])
        except OutOfMemoryError:
            return
        del self.bare[offset]

    @precondition(lambda self: self.soon)
    @rule()
    def free_next_piece(self):
        self.soon.pop(0)()

    def _add(self, offset, slot):
        assert offset % (PAGE_BYTES if slot >= LARGE_BYTES else ALIGNMENT) == 0
        assert 0 <= offset <= offset + slot <= self.backing.limit
        for start, length in self.live.items():
            assert offset + slot <= start or start + length <= offset
        self.live[offset] = slot

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[offset]
        self.arena.free(offset, is_bare=self.bare.pop(offset, None) is not None)
        with pytest.raises(LocalError):
            self.arena.free(offset)

    @rule(by=st.integers(-8, 8))
    def memory_comes_and_goes(self, by):
        self.backing.room = max(0, self.backing.room + by * LARGE_BYTES)

    @invariant()
    def live_slots_exist(self):
        """Every byte that is handed out is committed, but those of bare slots."""
        if hasattr(self, "live"):
            assert self.arena.live == len(self.live)
            assert self.backing.limit - self.arena.free_bytes == sum(self.live.values())
            for offset, size in self.live.items():
                assert offset in self.bare or self.backing.has(offset, size)


Machine.TestCase.settings = settings(
    max_examples=6 * settings.default.max_examples // 10,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestAnyOrder = Machine.TestCase
