# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The part of an inference request's document that repeats: all but its id, and its place in a sequence. (pure)

Clients number their requests, and each sequence has an id, so hardly two such documents are the same bytes. They have
the same key all the same, which leads to a plan (see inference/request_plans.py), or to the answer that a response
cache has prepared for all of them (see repeated_requests.py).

The id and the sequence are cut out by their text, without parsing the document. A document of which two readings are
possible, because something is escaped or occurs twice, is kept as it is.

Most documents consist of few texts, apart from what is cut out: those that have been looked through are remembered.
"""

from __future__ import annotations

import re

from pyruntime.runtime.inference.request_plans import PlanKey
from pyruntime.utils.request_codec import SEQUENCE_END, SEQUENCE_START

# The texts that are remembered, and the longest of them: half a MiB.
PLAIN_KEPT_MAX = 256
PLAIN_BYTES_MAX = 2048

_ID_NAME = b'"id"'
# How the names of the three members of a sequence begin.
_SEQUENCE_NAME, _SEQUENCE_NAMES = b'"sequence_', 3

# As clients write them: an id at the beginning, and before another member. No JSON string has bytes below 0x20. All ids
# of 19 digits fit the 64 bits of the protocol.
_ID_TEXT = rb'\{"id": ?"([^"\\\x00-\x1f]*)", ?(?=")'
_SEQUENCE_TEXT = (
    rb'"sequence_id": ?([1-9][0-9]{0,18}), ?"sequence_start": ?(true|false), ?"sequence_end": ?(true|false)'
)
_ID = re.compile(_ID_TEXT)
_SEQUENCE = re.compile(_SEQUENCE_TEXT)
# Both, at the beginning.
_ID_AND_SEQUENCE = re.compile(_ID_TEXT + rb'"parameters": ?\{' + _SEQUENCE_TEXT)
# In a key, in the place of where the sequence was: at the beginning, so that the text has only what is behind it.
_BEHIND_SEQUENCE = -2

# Texts that have nothing which could be cut out, and nothing escaped.
_plain: set[bytes] = set()


def cut_id(data: bytes, length: int) -> tuple[str, int] | None:
    """The id in a document, which is the first `length` bytes of `data`, and where the members behind it begin.

    None for a document whose id is not at its beginning, or may be another one.
    """
    found = _ID.match(data, 0, length)
    if found is None or data.find(b"\\", 0, length) >= 0 or data.find(_ID_NAME, found.end(), length) >= 0:
        return None
    try:
        return found[1].decode(), found.end()
    except UnicodeDecodeError:
        return None  # an error, which the parser reports


def split_document(document: bytes, size: int) -> tuple[PlanKey, str, tuple[int, int] | None]:
    """The key of a request, its id, and its correlation id with the flags of the sequence.

    `size` is that of the contents behind the document, in bytes. What is not cut out of the document is "", or None;
    the key then has it. A document that is no valid JSON may be cut, too: its key is that of no valid one.
    """
    try:
        if (both := _ID_AND_SEQUENCE.match(document)) is not None:
            behind = document[both.end() :]
            if _is_plain(behind):
                id, sequence_id, start, end = both.groups()
                return (behind, size, _BEHIND_SEQUENCE), id.decode(), (int(sequence_id), _flags(start, end))
        elif document in _plain:
            return (document, size, -1), "", None
        elif (found := _ID.match(document)) is not None and _is_plain(rest := b"{" + document[found.end() :]):
            return (rest, size, -1), found[1].decode(), None
        elif found is None and _is_plain(document):
            return (document, size, -1), "", None
    except UnicodeDecodeError:
        pass  # an error, which the parser reports
    return _split_unusual(document, size)


def _flags(start: bytes, end: bytes) -> int:
    return (SEQUENCE_START if start == b"true" else 0) | (SEQUENCE_END if end == b"true" else 0)


def _is_plain(text: bytes) -> bool:
    """Whether nothing in a part of a document could be cut out, and nothing is escaped."""
    if text in _plain:
        return True
    if _SEQUENCE_NAME in text or _ID_NAME in text or b"\\" in text:
        return False
    if len(text) <= PLAIN_BYTES_MAX:
        if len(_plain) >= PLAIN_KEPT_MAX:
            _plain.clear()
        _plain.add(text)
    return True


def _split_unusual(document: bytes, size: int) -> tuple[PlanKey, str, tuple[int, int] | None]:
    """As `split_document`, for any document."""
    if b"\\" in document:
        return (document, size), "", None
    id, sequence, at, common = "", None, -1, document
    cut = cut_id(document, len(document))
    if cut is not None:
        id, begin = cut
        common = b"{" + document[begin:]
    if common.count(_SEQUENCE_NAME) == _SEQUENCE_NAMES:
        found = _SEQUENCE.search(common)
        if found is not None:
            at, end = found.span()
            sequence = int(found[1]), _flags(found[2], found[3])
            common = common[:at] + common[end:]
    return (common, size, at), id, sequence
