# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How responses to inference are compressed: --grpc-infer-response-compression-level. (pure)"""

from __future__ import annotations

from pyruntime.runtime.frontends.grpc.head import CallHead

# zlib's levels for Triton's words.
_LEVELS = {"low": 1, "medium": 6, "high": 9}


# What it is, and zlib's level of it.
Encoding = tuple[str, int]


def response_encoding(level: str, head: CallHead) -> Encoding | None:
    """The encoding of the responses to a call, None for none at all.

    Of what the client accepts, gzip comes first.
    """
    if level == "none":
        return None
    for encoding in ("gzip", "deflate"):
        if encoding in head.accepts:
            return encoding, _LEVELS[level]
    return None
