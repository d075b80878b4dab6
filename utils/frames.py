# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of a channel as bytes, and back: msgpack, in C. (pure)

Every request passes this four times, and msgpack's own parser and packer, which keep more options open, take three
times as long. See native/frames.c.
"""

from __future__ import annotations

from typing import Any, List, Tuple, Type

from pyruntime.utils import fast_path

__all__ = ["pack", "unpack"]

try:
    fast_path.require()
    from pyruntime.utils._frames import pack, unpack
except ImportError:  # it has the stable ABI, which some Pythons cannot load, such as one without a GIL
    import msgpack

    def pack(frame: object, /) -> bytes:
        """A frame as bytes. Raises TypeError, ValueError or OverflowError for what msgpack cannot express.

        Text that UTF-8 cannot encode is escaped.
        """
        packed: bytes = msgpack.packb(frame, unicode_errors="backslashreplace")
        return packed

    def unpack(
        data: bytes, kinds: Tuple[Type[Any], ...], types: Tuple[Tuple[Any, ...], ...], /
    ) -> Tuple[List[Any], int]:
        """The messages that `data` begins with, and their size in bytes.

        A frame is `[tag, fields]`: a message of kind `kinds[tag]`, whose fields have the types `types[tag]`. What
        follows is incomplete, illegal, or rare: it is for msgpack's own parser.
        """
        return [], 0
