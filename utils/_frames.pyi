# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""msgpack for the frames of a channel: see frames.py."""

from typing import Any

def pack(frame: object, /) -> bytes: ...
def unpack(
    data: bytes, kinds: tuple[type[Any], ...], types: tuple[tuple[Any, ...], ...], /
) -> tuple[list[Any], int]: ...
