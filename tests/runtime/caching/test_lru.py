# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Entries that were used last, against a list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.caching.lru import OVERHEAD_BYTES, LeastRecentlyUsed
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
