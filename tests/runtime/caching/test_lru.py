# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Entries that were used last, against a list, and the answers that are prepared from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.caching.lru import ANSWERS_SHARE, OVERHEAD_BYTES, LeastRecentlyUsed
from pyruntime.utils.errors import LocalError


def room(*sizes):
    """The bytes of entries of these sizes."""
    return sum(sizes) + len(sizes) * OVERHEAD_BYTES


def test_makes_room():
    """The entry that was not used for longest goes; a lookup is a use."""
    made = LeastRecentlyUsed(room(10, 10))
    made.add("a", b"a" * 10)
    made.add("b", b"b" * 10)
    assert made.find("a") == b"a" * 10
    made.add("c", b"c" * 10)
    assert [made.find(key) for key in "abc"] == [b"a" * 10, None, b"c" * 10]
    assert (len(made), made.used) == (2, room(10, 10))


def test_too_large():
    """An entry that is larger than all room changes nothing."""
    made = LeastRecentlyUsed(room(10))
    made.add("a", b"a")
    with pytest.raises(LocalError) as caught:
        made.add("b", bytes(11))
    assert str(caught.value) == f"Requested byte_size: {room(11)} is greater than total cache size: {room(10)}"
    assert made.find("a") == b"a"


def test_first_stays():
    """A key keeps the entry that it has."""
    made = LeastRecentlyUsed(room(10))
    made.add("a", b"1")
    made.add("a", b"2")
    assert (made.find("a"), made.used) == (b"1", room(1))


@given(
    size=st.integers(0, 4 * OVERHEAD_BYTES),
    operations=st.lists(
        st.tuples(st.booleans(), st.sampled_from("abcde"), st.integers(0, OVERHEAD_BYTES)), max_size=50
    ),
)
def test_agrees_with_a_list(size, operations):
    """For all operations: the same entries, in the same order, within the size."""
    made, entries = LeastRecentlyUsed(size), []
    for is_lookup, key, length in operations:
        found = next((each for each in entries if each[0] == key), None)
        if is_lookup:
            assert made.find(key) == (found and found[1])
            if found:
                entries.remove(found)
                entries.append(found)
        elif found is None and room(length) <= size:
            made.add(key, bytes(length))
            entries.append((key, bytes(length)))
            while room(*(len(entry) for _, entry in entries)) > size:
                entries.pop(0)
        assert made.used == room(*(len(entry) for _, entry in entries)) <= size
    assert [key for key in "abcde" if made.find(key) is not None] == sorted(key for key, _ in entries)


def roomy(*keys):
    """Entries of these keys, with room for two answers of 10 bytes to requests of 10 bytes, and for three entries."""
    made = LeastRecentlyUsed(int(2 * room(20) / ANSWERS_SHARE))
    for key in keys:
        made.add(key, bytes(made.size // 3 - OVERHEAD_BYTES))
    return made


def prepare(made, key, *requests):
    for request in requests:
        made.add_answer(key, request, request.encode() * 10, 20)


def test_answers():
    """They are found by the request, and take a part of the same bytes."""
    made = roomy("a")
    before = made.used
    prepare(made, "a", "1", "2")
    assert [made.find_answer(request) for request in "123"] == [b"1" * 10, b"2" * 10, None]
    assert made.used == before + 2 * room(20)
    made.add_answer("a", "1", b"another", 17)
    made.add_answer("none", "3", b"", 10)
    made.add_answer("a", "large", b"", made.size)
    assert [made.find_answer(request) for request in ("1", "3", "large")] == [b"1" * 10, None, None]
    assert made.used == before + 2 * room(20)


def test_answer_that_was_not_used_for_longest():
    """It goes when there are too many, and its entry stays."""
    made = roomy("a")
    prepare(made, "a", "1", "2")
    made.find_answer("1")
    prepare(made, "a", "3")
    assert [made.find_answer(request) for request in "123"] == [b"1" * 10, None, b"3" * 10]
    assert len(made) == 1


def test_answers_go_with_their_entry():
    """An entry that is evicted answers nothing, also when there is another one for its key."""
    made = roomy("a", "b")
    prepare(made, "a", "1", "2")
    made.find("b")
    for key in "cd":
        made.add(key, bytes(made.size // 3 - OVERHEAD_BYTES))
    assert made.find("a") is None
    made.add("a", b"")
    assert [made.find_answer(request) for request in "12"] == [None, None]


def test_answer_is_a_use_of_its_entry():
    """Another entry makes room."""
    made = roomy("a", "b")
    prepare(made, "a", "1")
    made.find("b")
    made.find_answer("1")
    made.add("c", bytes(made.size // 3 - OVERHEAD_BYTES))
    assert (made.find_answer("1"), made.find("b")) == (b"1" * 10, None)
    assert made.find("a") is not None


def test_answer_evicts_no_entry_of_its_own():
    """Where there is no room for both, the entry is more important."""
    made = roomy()
    made.add("a", bytes(made.size - OVERHEAD_BYTES))
    prepare(made, "a", "1")
    assert (made.find_answer("1"), made.used) == (None, made.size)


@given(
    operations=st.lists(
        st.tuples(
            st.sampled_from(["add", "find", "add_answer", "find_answer"]), st.sampled_from("abc"), st.integers(0, 9)
        ),
        max_size=60,
    ),
)
def test_answers_stay_in_bounds(operations):
    """For all operations: an answer that is found belongs to an entry that is there, and all of it has room."""
    made, prepared = LeastRecentlyUsed(20 * OVERHEAD_BYTES), {}
    for name, key, number in operations:
        request = f"{key}{number}"
        if name == "add":
            made.add(key, bytes(7 * OVERHEAD_BYTES + number))
        elif name == "find":
            made.find(key)
        elif name == "add_answer":
            made.add_answer(key, request, b"x" * number, 1 + number)
            prepared.setdefault(request, b"x" * number)
        else:
            answer = made.find_answer(request)
            assert answer in (None, prepared.get(request))
            assert answer is None or made.find(key) is not None
        assert made.used <= made.size
    made.add("all", bytes(made.size - OVERHEAD_BYTES))
    assert (len(made), made.used) == (1, made.size)
