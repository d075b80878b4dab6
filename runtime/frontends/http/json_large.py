# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large inference documents, parsed piece by piece. (pure)

Large documents consist of the elements of their inputs. Parsing millions of them takes seconds and gigabytes, and
blocks all other threads. So lists of plain elements are cut out of the text first, and parsed and packed in slices. The
rest is a small document. Lists that are nested deeper than rows of numbers stay in it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pyruntime.runtime.frontends.common.json_document import parse_document
from pyruntime.runtime.frontends.http.json_tensors import NO_JSON, PackedElements, pack_slices
from pyruntime.utils.dtypes import BY_NAME

# A slice of a list, in bytes: a few milliseconds' work. A list that is no longer is not cut out.
SLICE_BYTES = 64 << 10

_DATA = b'"data"'
_DATA_LIST = re.compile(rb'"data"\s*+:\s*+\[')
# A string, a row of numbers, or a number.
_ELEMENT = rb'\s*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|\[[^"\[\]{}]*+\]|[^"\[\]{},\s]++)\s*+'
_ELEMENTS = re.compile(rb"(?:%b,)*+" % _ELEMENT, re.DOTALL)
_ONE = re.compile(rb"%b," % _ELEMENT, re.DOTALL)
_LAST = re.compile(rb"(%b|\s*+)\]" % _ELEMENT, re.DOTALL)

# Replaces a list in the small document, within a list of its own. No client can guess it.
_TOKEN = secrets.token_hex(16)

# The beginning and the end of a slice in the text.
Slice = tuple[int, int]


class _List(NamedTuple):
    """A list that is cut out, as slices; without its brackets it lies between `start` and `end`."""

    start: int
    end: int
    slices: list[Slice]


def parse_large(text: bytes | bytearray) -> Mapping[str, object]:
    """As parse_document; but the "data" of inputs may be packed already. Raises InferenceError (INVALID_ARG)."""
    lists = list(_find_lists(text))
    parts = []
    at = 0
    for number, found in enumerate(lists):
        parts += [text[at : found.start], b'"%b",%d' % (_TOKEN.encode(), number)]
        at = found.end
    document: Mapping[str, object] = parse_document(b"".join([*parts, text[at:]]))
    inputs = document.get("inputs")
    for entry in inputs if type(inputs) is list else ():
        data = entry.get("data") if type(entry) is dict else None
        if type(data) is list and data[:1] == [_TOKEN]:
            entry["data"] = _pack(entry, text, lists[data[1]].slices)
    return document


def _pack(entry: Mapping[str, object], text: bytes | bytearray, slices: list[Slice]) -> PackedElements | list[object]:
    name, datatype = entry.get("name"), entry.get("datatype")
    if type(name) is not str or type(datatype) is not str or datatype not in BY_NAME or datatype in NO_JSON:
        return []  # the input is refused, whatever its data
    return pack_slices(name, datatype, text, slices)


def _find_lists(text: bytes | bytearray) -> Iterator[_List]:
    """The lists that are long enough to be parsed apart."""
    at = 0
    # A quote in a string has a backslash before it. So this is the name of a member, or else the whole is not JSON.
    while (at := text.find(_DATA, at)) >= 0:
        found = _DATA_LIST.match(text, at) if text[at - 1 : at] != b"\\" else None
        if found is None:
            at += len(_DATA)
            continue
        at = found.end()
        slices = _cut(text, at)
        if slices is not None:
            yield _List(at, slices[-1][1], slices)
            at = slices[-1][1]


def _cut(text: bytes | bytearray, start: int) -> list[Slice] | None:
    """The slices of the list whose elements begin at `start`; None if it has others than plain ones, or is small.

    All but the last end before a comma, and that one before the bracket.
    """
    slices: list[Slice] = []
    at = start
    while True:
        end = _ELEMENTS.match(text, at, at + SLICE_BYTES).end()  # type: ignore[union-attr]  # it matches the empty string as well
        if end == at:
            last = _LAST.match(text, at)
            if last is not None:
                if slices and not last[1].strip():  # a comma with nothing behind it: no good in a slice either
                    at = slices.pop()[0]
                slices.append((at, last.end() - 1))
                return slices if slices[-1][1] - start > SLICE_BYTES else None
            one = _ONE.match(text, at)  # a string that is longer than a slice
            if one is None:
                return None
            end = one.end()
        slices.append((at, end - 1))
        at = end
