# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The codecs of plain requests and responses: those of `_codecs`, or without the fast path ones that always miss.

Whoever has anything read or written natively imports it from here. What misses goes to Python: see _codecs.pyi.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyruntime.utils import fast_path

__all__ = [
    "InferReader",
    "OutputReader",
    "PlainHeadReader",
    "read_call",
    "read_target",
    "write_answer",
    "write_document",
    "write_message",
]

if TYPE_CHECKING or not fast_path.is_off():
    from pyruntime.runtime.native._codecs import (
        InferReader,
        OutputReader,
        PlainHeadReader,
        read_call,
        read_target,
        write_answer,
        write_document,
        write_message,
    )
else:

    def miss(*arguments: object) -> None:
        """Nothing is plain."""

    class Misses:
        """A reader of nothing."""

        def __init__(self, *arguments: object) -> None:
            pass

        read = read_all = read_document = read_generate = read_message = miss

    InferReader = OutputReader = PlainHeadReader = Misses
    read_call = read_target = write_answer = write_document = write_message = miss
