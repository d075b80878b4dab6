# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large inference documents, read piece by piece. (pure)

Large documents consist of the elements of their inputs. Parsing millions of them takes seconds and gigabytes, and
blocks all other threads. So lists of elements, however they nest, are cut out of the text first. The rest is a small
document, or it is refused. It says how much memory the tensors need, and the lists are then parsed in slices into that
memory. Lists with empty lists, objects or the like in them are left in the document.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from pyruntime.runtime.frontends.common.json_document import (
    JSON_DEPTH_MAX,
    STRING,
    invalid,
    parse_document,
    refuse_ambiguous,
    string_end,
)
from pyruntime.runtime.frontends.http.json_tensors import NO_JSON, PackedElements, pack_long_string, pack_slice
from pyruntime.runtime.frontends.http.kserve_request import DIMS_MAX, MEMBERS, TENSORS_MAX
from pyruntime.runtime.json_types import JsonObject, JsonValue
from pyruntime.utils.arena import ALIGNMENT
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import Code, InferenceError

# A slice of a list, in bytes: a few milliseconds' work.
SLICE_BYTES = 64 << 10
# A list that is no longer than this, in bytes, is not cut out: its replacement has as many.
SHORT_BYTES_MAX = 64
# The longest document without the lists that are cut out: it has room for names and shapes of TENSORS_MAX inputs.
REST_BYTES_MAX = 4 << 20
# The bytes that are searched at a time, and the most blanks around a colon.
_WINDOW_BYTES = 1 << 20
_BLANKS_MAX = 1 << 10

_DATA = b'"data"'
_DATA_LIST = re.compile(rb'"data"\s*+:\s*+\[')
# An element with the brackets around it: a string, or a number or word.
_ITEM = rb"\s*+(?:\[\s*+)*+(?:%b|[^\"\[\]{},\s]++)\s*+(?:\]\s*+)*+" % STRING
_ITEMS = re.compile(rb"(?:%b,)*+" % _ITEM, re.DOTALL)
# The last element, which no comma follows. There is none in an empty list, nor behind a comma that is one too many.
_LAST = re.compile(rb"(?:%b|\s*+(?:\]\s*+)++)" % _ITEM, re.DOTALL)
# The beginning of an element that is a string, and the end of any element.
_OPENERS = re.compile(rb'\s*+(?:\[\s*+)*+"')
_CLOSERS = re.compile(rb"\s*+(?:\]\s*+)*+,?+")
_STRING = re.compile(STRING, re.DOTALL)
_BRACKET = re.compile(rb"%b|([\[\]])" % STRING, re.DOTALL)
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]")
_BLANK_BRACKETS = bytes.maketrans(b"[]", b"  ")
_STEPS = {ord("["): 1, ord("]"): -1}

# Replaces a list in the small document, within a list of its own. No client can guess it.
_TOKEN = secrets.token_hex(16)

Text = bytes | bytearray
# The beginning and the end of a slice in the text. One that is longer than SLICE_BYTES has one element, a string.
Slice = tuple[int, int]


class _List(NamedTuple):
    """A list that is cut out, as slices; without its brackets it lies between `start` and `end`.

    All slices but the last end before a comma, and that one before the bracket. `commas` includes those in strings.
    """

    start: int
    end: int
    slices: list[Slice]
    commas: int


class _Tensor(NamedTuple):
    """An input whose data is cut out. It needs at most `size` bytes; if it needs more, its shape is wrong."""

    entry: JsonObject
    name: str
    datatype: str
    slices: list[Slice]
    size: int


class LargeDocument:
    """See the module. `text` must not change. Any thread may call the methods, one after the other.

    Both raise InferenceError: INVALID_ARG for mistakes, and CANCELLED once `is_gone` returns True.
    """

    def __init__(self, text: Text, is_gone: Callable[[], bool] = lambda: False) -> None:
        self._text = text
        self._is_gone = is_gone
        self._document: JsonObject = {}
        self._tensors: list[_Tensor] = []

    def read(self) -> int:
        """Read everything but the elements of the lists that are cut out. Returns the bytes that `pack` needs."""
        text, at = self._text, 0
        lists: list[_List] = []
        parts: list[Text] = []
        for found in self._find_lists():
            if len(lists) == TENSORS_MAX:
                raise invalid(f"the request has more than {TENSORS_MAX} lists of elements")
            parts += [text[at : found.start], b'"%b",%d' % (_TOKEN.encode(), len(lists))]
            lists.append(found)
            at = found.end
        if sum(map(len, parts)) + len(text) - at > REST_BYTES_MAX:
            raise invalid(
                f"the request's document has more than {REST_BYTES_MAX} bytes, not counting lists of elements in 'data'"
            )
        rest = b"".join([*parts, text[at:]])
        self._document = parse_document(rest)
        refuse_ambiguous(rest, MEMBERS)
        inputs = self._document.get("inputs")
        for entry in inputs if isinstance(inputs, list) else ():
            data = entry.get("data") if isinstance(entry, dict) else None
            if isinstance(entry, dict) and isinstance(data, list) and data[:1] == [_TOKEN]:
                number = data[1]
                assert isinstance(number, int)  # see above
                self._add(entry, lists[number])
        return sum(tensor.size for tensor in self._tensors)

    def pack(self, memory: memoryview, base: int = -1) -> Mapping[str, object]:
        """Parse the elements into `memory`, which has as many bytes as `read` returned. Returns the document.

        The data of inputs that are cut out are PackedElements there. `base` is where the memory begins in a request
        region, in bytes, or -1.
        """
        at = 0
        document: dict[str, object] = {**self._document}
        packed: dict[int, PackedElements] = {}
        for tensor in self._tensors:
            length = position = 0
            view = memory[at : at + tensor.size]
            for start, end in tensor.slices:
                self._check_wanted()
                count, size = self._pack_slice(tensor, start, end, view[position:])
                length += count
                position += size
            packed[id(tensor.entry)] = PackedElements(view[:position], length, base + at if base >= 0 else -1)
            at += tensor.size
        if packed:
            inputs = self._document["inputs"]
            assert isinstance(inputs, list)  # the tensors are of its entries
            document["inputs"] = [
                {**entry, "data": packed[id(entry)]} if isinstance(entry, dict) and id(entry) in packed else entry
                for entry in inputs
            ]
        return document

    def _pack_slice(self, tensor: _Tensor, start: int, end: int, memory: memoryview) -> tuple[int, int]:
        if end - start > SLICE_BYTES:
            opener = _OPENERS.match(self._text, start)
            assert opener is not None  # see Slice
            closing = string_end(self._text, opener.end())
            return 1, pack_long_string(tensor.name, tensor.datatype, self._text, opener.end(), closing, memory)
        text = self._text[start:end]
        if b"[" in text or b"]" in text:
            # How the list nests does not matter. Blanks in place of brackets leave everything where it is.
            if b'"' in text:
                text = _BRACKET.sub(lambda found: b" " if found[1] else found[0], text)
            else:
                text = text.translate(_BLANK_BRACKETS)
        return pack_slice(tensor.name, tensor.datatype, text, start, memory)

    def _add(self, entry: JsonObject, found: _List) -> None:
        name, datatype = entry.get("name"), entry.get("datatype")
        known = isinstance(name, str) and isinstance(datatype, str) and datatype in BY_NAME and datatype not in NO_JSON
        if not known:
            entry["data"] = []  # the input is refused, whatever its data
            return
        assert isinstance(name, str)
        assert isinstance(datatype, str)
        if datatype == "BYTES":
            # An element has a prefix in place of two quotes and a comma, and no character becomes longer.
            size = (found.end - found.start + 1) * BYTES_PREFIX_SIZE // 3 + BYTES_PREFIX_SIZE
        else:
            size = BY_NAME[datatype].size * min(found.commas + 1, _count(entry.get("shape")))
        self._tensors.append(_Tensor(entry, name, datatype, found.slices, -(-size // ALIGNMENT) * ALIGNMENT))

    def _check_wanted(self) -> None:
        if self._is_gone():
            raise InferenceError("", Code.CANCELLED)

    def _find_lists(self) -> Iterator[_List]:
        """The lists that are cut out."""
        text, at = self._text, 0
        while at < len(text):
            self._check_wanted()
            found = text.find(_DATA, at, at + _WINDOW_BYTES)
            if found < 0:
                at += _WINDOW_BYTES - len(_DATA) + 1
                continue
            at = found + len(_DATA)
            # A quote in a string has a backslash before it. So this is the name of a member, or the whole is not JSON.
            if text[found - 1 : found] == b"\\":
                continue
            match = _DATA_LIST.match(text, found, at + _BLANKS_MAX)
            cut = None if match is None else self._cut(match.end())
            if cut is not None and cut.end - cut.start > SHORT_BYTES_MAX:
                yield cut
                at = cut.end

    def _cut(self, start: int) -> _List | None:
        """The list whose elements begin at `start`; None if some of them are no plain ones, or it does not end."""
        text, at, depth, commas = self._text, start, 0, 0
        slices: list[Slice] = []
        while True:
            self._check_wanted()
            end, skipped = self._elements(at)
            plain = _outside(text, at, end) if not skipped else text[at : skipped[0]] + text[skipped[1] : end]
            levels = list(accumulate(map(_STEPS.__getitem__, plain.translate(None, _NO_BRACKETS)), initial=depth))
            if end == at or max(levels) >= JSON_DEPTH_MAX:
                return None
            if min(levels) < 0:
                closing = self._bracket(at, end, levels.index(-1), skipped)
                if slices and not text[at:closing].strip(b" \t\r\n]"):  # a comma with nothing behind it is an error
                    at = slices.pop()[0]
                slices.append((at, closing))
                return _List(start, closing, slices, commas + text.count(b",", at, closing))
            if text[end - 1 : end] != b",":
                return None
            slices.append((at, end - 1))
            commas += text.count(b",", at, end)
            at, depth = end, levels[-1]

    def _elements(self, at: int) -> tuple[int, Slice | None]:
        """The end of the elements from `at` on that make a slice, and of others behind the list; `at` if there is none.

        If it is one long string, also the beginning and the end of its contents.
        """
        text = self._text
        for pattern in (_ITEMS, _LAST):
            found = pattern.match(text, at, at + SLICE_BYTES)
            if found is not None and found.end() > at:
                return found.end(), None
        opener = _OPENERS.match(text, at, at + SLICE_BYTES)
        if opener is None:
            return at, None
        closing = string_end(text, opener.end())
        closers = _CLOSERS.match(text, closing + 1, closing + 1 + SLICE_BYTES)
        if closing == len(text) or closers is None:
            return at, None
        return closers.end(), (opener.end(), closing)

    def _bracket(self, start: int, end: int, number: int, skipped: Slice | None) -> int:
        """Where bracket `number` of a slice is, which is the one that ends the list; `skipped` are the contents of a
        long string.
        """
        if skipped is not None:
            number -= self._text.count(b"[", start, skipped[0])
            start = skipped[1] + 1
        for found in _BRACKET.finditer(self._text, start, end):
            number -= found[1] is not None
            if not number:
                return found.start()
        raise AssertionError("the brackets of a slice are counted twice in the same way")


def _outside(text: Text, start: int, end: int) -> Text:
    """A slice without its strings."""
    part = text[start:end]
    return _STRING.sub(b"", part) if b'"' in part else part


def _count(shape: JsonValue) -> int:
    """The number of elements of a shape; 0 if it is no shape."""
    dims = [dim for dim in shape if isinstance(dim, int) and dim >= 0] if isinstance(shape, list) else []
    return math.prod(dims[:DIMS_MAX])
