# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Messages as bytes, and back: as msgpack has them, whatever they contain, and however the bytes are cut or broken."""

import importlib.util
import subprocess
import sys
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyruntime.utils import frames
from pyruntime.utils._frames import pack, unpack


class Empty(NamedTuple):
    """A message without fields."""


class Any1(NamedTuple):
    """A message with a field of any type."""

    value: Any


class Typed(NamedTuple):
    """A message whose fields have types."""

    number: int
    some: Any


KINDS = (Empty, Any1, Typed)
TYPES: tuple[tuple[Any, ...], ...] = ((), (object,), (int, (list, type(None))))

INTEGERS = st.integers(-(2**63), 2**64 - 1) | st.builds(
    lambda sign, shift, more: max(-(2**63), min(2**64 - 1, sign * ((1 << shift) + more))),
    st.sampled_from([-1, 1]),
    st.integers(0, 64),
    st.integers(-1, 1),
)
SCALARS = (
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text(max_size=40) | st.binary(max_size=40)
)
VALUES = st.recursive(
    SCALARS, lambda value: st.lists(value, max_size=17) | st.dictionaries(SCALARS, value, max_size=17), max_leaves=30
)


def as_msgpack(frame):
    return msgpack.packb(frame, unicode_errors="backslashreplace")


def read(data):
    return unpack(data, KINDS, TYPES)


@given(VALUES)
def test_packs_as_msgpack(value):
    """The bytes are msgpack's, and so is what they are read as."""
    data = pack([1, [value]])
    assert data == as_msgpack([1, [value]])
    expected = msgpack.unpackb(data, raw=False, strict_map_key=False)[1]
    assert read(data + data) == ([Any1(*expected)] * 2, 2 * len(data))


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 2047, 65535, 65536])
def test_lengths(size):
    """Each kind of length, and frames beyond the memory that the packer begins with."""
    for value in ("a" * size, bytes(size), [1] * size, {key: 1 for key in range(size)}):
        data = pack([1, [value]])
        assert data == as_msgpack([1, [value]])
        assert read(data) == ([Any1(value)], len(data))


class Level(IntEnum):
    """A number that is no plain int."""

    HIGH = 300


class Text(str):
    """A text that is no plain str."""


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        (Any1(5), [5]),
        (Level.HIGH, 300),
        (Text("é"), "é"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        ("lone \ud800", "lone \\ud800"),
        (True, True),
    ],
)
def test_packs_other_types(value, plain):
    """Tuples are lists, and subclasses are what they derive from."""
    assert msgpack.unpackb(pack(value)) == plain


@pytest.mark.parametrize(
    ("value", "error"),
    [(object(), TypeError), ({1, 2}, TypeError), (2**64, OverflowError), (-(2**63) - 1, OverflowError)],
)
def test_packs_nothing_else(value, error):
    """What msgpack cannot express is refused, wherever it stands."""
    with pytest.raises(error):
        pack([1, {"a": [value]}])


def nested(depth):
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Changing(bytes):
    """Bytes that would run code of a model when they are read as a buffer."""

    def __buffer__(self, flags):
        raise AssertionError("the code of a model ran")


def test_bytes_of_another_class():
    """Their own bytes are packed, as msgpack does."""
    assert pack([Changing(b"x"), bytearray(b"y")]) == as_msgpack([b"x", b"y"])


@pytest.mark.processes
@pytest.mark.parametrize("alone", [True, False])
def test_what_changes_meanwhile(alone):
    """A list that is emptied while it is packed, by garbage that is collected then, is an error and nothing worse.

    From Python 3.12 on nothing is collected there.
    """
    code = f"""
import gc, sys
from pyruntime.utils._frames import pack

class Emptying:
    def __del__(self):
        items.clear()

gc.disable()
items = ["".join(["\\ud800", "z" * 300])] + {[] if alone else [1]}
garbage = Emptying()
garbage.me = garbage
del garbage
gc.set_threshold(1)
gc.enable()
try:
    print(len(pack(items)))
except ValueError as exc:
    print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    length = 1 + 3 + len("\\ud800") + 300 + (0 if alone else 1)
    assert done.stdout.strip() in ("a list or dict changed while it was packed", str(length)), done.stderr


def test_depth():
    """Deeper lists than msgpack packs are refused, and left to msgpack when they come."""
    assert pack(nested(510)) == as_msgpack(nested(510))
    with pytest.raises(ValueError, match="recursion limit"):
        pack(nested(511))
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with pytest.raises(ValueError, match="recursion limit"):
        pack(cyclic)
    assert read(b"\x92\x01\x91" + b"\x91" * 100_000 + b"\x90") == ([], 0)


@given(VALUES, st.data())
def test_stops_at_what_is_incomplete(value, data):
    """Of a frame that is cut nothing is taken, and of those before it everything."""
    frame = pack([1, [value]])
    cut = data.draw(st.integers(0, len(frame) - 1))
    messages, size = read(frame + frame[:cut])
    assert (len(messages), size) == (1, len(frame))


@pytest.mark.parametrize(
    "frame",
    [
        [3, []],
        [-1, []],
        [0, [1]],
        [2, ["1", []]],
        [2, [1, 2]],
        [0, [], 0],
        [0],
        {0: []},
        [1, [msgpack.ExtType(5, b"abcd")]],
        [1, [msgpack.Timestamp(1)]],
        "text",
        7,
        None,
    ],
)
def test_stops_at_what_is_no_message(frame):
    """Frames that are no message of these, and types that no message has."""
    good = pack([2, [True, None]])
    assert read(good + msgpack.packb(frame) + good) == ([Typed(True, None)], len(good))


@pytest.mark.parametrize(
    "value",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdf\x80\x00\x00\x00",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdc\x00\x10" * 3000,
        b"\xc1",
        b"\xa1\xff",
        b"\x81\x90\x01",
        b"\xcd\x01",
        b"",
    ],
)
def test_stops_at_what_lies(value):
    """Lengths beyond the data, invalid text and tags, keys that no dict can have."""
    good = pack([0, []])
    assert read(good + b"\x92\x01\x91" + value) == ([Empty()], len(good))


@given(st.binary(max_size=64))
@example(b"\xdd\x00\x00\x00\x02\x00")
def test_any_bytes(data):
    """What is read of any bytes is what msgpack reads."""
    messages, _size = read(b"\x92\x01\x91" + data)
    if messages:
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
        unpacker.feed(b"\x92\x01\x91" + data)
        assert repr([[1, list(message)] if message else [0, []] for message in messages[:1]]) == repr(
            [unpacker.unpack()]
        )


def test_short_texts_are_kept():
    """A name that comes again is the same object, and another one of the same hash is not taken for it."""
    names = [f"INPUT{number}" for number in range(3000)]
    for _ in range(2):
        for name in names:
            ((message,), _size) = read(pack([1, [[name, name]]]))
            assert message.value == [name, name]
            assert message.value[0] is message.value[1]


def test_without_the_extension(monkeypatch):
    """A Python that cannot load it has msgpack instead: the bytes are the same, and nothing is read here."""
    monkeypatch.setitem(sys.modules, "pyruntime.utils._frames", None)
    spec = importlib.util.spec_from_file_location("frames_without", frames.__file__)
    assert spec is not None
    assert spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    message = (1, ["lone \ud800", b"a", [1, None]])
    assert other.pack(message) == pack(message)
    assert other.unpack(pack(message), KINDS, TYPES) == ([], 0)
    with pytest.raises((TypeError, ValueError)):
        other.pack(object())
