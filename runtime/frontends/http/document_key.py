# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The part of an inference request's document that repeats: all but its id, and its place in a sequence. (pure)

Clients number their requests, and each sequence has an id, so hardly two such documents are the same bytes. They have
the same key all the same, which leads to a plan (see inference/request_plans.py), or to the answer that a response
cache has prepared for all of them (see repeated_requests.py).

The id and the sequence are cut out by their text, without parsing the document. A document of which two readings are
possible, because something is escaped or occurs twice, is kept as it is.
"""

from __future__ import annotations

import re

from pyruntime.runtime.inference.request_plans import PlanKey
from pyruntime.utils.request_codec import SEQUENCE_END, SEQUENCE_START

# Each stands in a document that is worth a look.
ID, SEQUENCE_ID = b'"id"', b'"sequence_id"'

# At the beginning, where clients write it, and before another member. No JSON string has bytes below 0x20.
_ID = re.compile(rb'\{"id": ?"([^"\x00-\x1f]*)", ?(?=")')
# As clients write it. All ids of 19 digits fit the 64 bits of the protocol.
_SEQUENCE = re.compile(
    rb'"sequence_id": ?([1-9][0-9]{0,18}), ?"sequence_start": ?(true|false), ?"sequence_end": ?(true|false)'
)
_FLAGS = {
    (b"false", b"false"): 0,
    (b"true", b"false"): SEQUENCE_START,
    (b"false", b"true"): SEQUENCE_END,
    (b"true", b"true"): SEQUENCE_START | SEQUENCE_END,
}


def cut_id(data: bytes, length: int) -> tuple[str, int] | None:
    """The id in a document, which is the first `length` bytes of `data`, and where the members behind it begin.

    None for a document whose id is not at its beginning, or may be another one.
    """
    found = _ID.match(data, 0, length)
    if found is None or data.find(b"\\", 0, length) >= 0 or data.find(ID, found.end(), length) >= 0:
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
    if b"\\" in document:
        return (document, size), "", None
    id, sequence, at, common = "", None, -1, document
    cut = cut_id(document, len(document))
    if cut is not None:
        id, begin = cut
        common = b"{" + document[begin:]
    if common.count(SEQUENCE_ID) == 1:
        found = _SEQUENCE.search(common)
        if found is not None:
            at, end = found.span()
            sequence = int(found[1]), _FLAGS[found[2], found[3]]
            common = common[:at] + common[end:]
    return (common, size, at), id, sequence
