# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which members of an archive may be unpacked. (pure)

An archive may come from anywhere, and unpacking it must write nowhere but below its folder, whatever it contains:

- a name is relative and goes down only; each is used once;
- no member lies below a link, so every member's folder is a real folder and its depth is what its name says;
- a link leads to somewhere inside, and goes up, if at all, at its beginning: what it goes down through afterwards are
  folders, or links of which the same holds;
- nothing is a device, a pipe or a socket.
"""

from __future__ import annotations

from enum import Enum, auto

from pyruntime.utils.errors import LoadError

# A scientific environment of conda has some tens of thousands of files.
MEMBERS_MAX = 1_000_000
# Unpacked; the largest environments, with several frameworks for GPUs, come to a quarter of this.
BYTES_MAX = 64 << 30


class Kind(Enum):
    """What a member is."""

    FOLDER = auto()
    FILE = auto()
    LINK = auto()
    HARD_LINK = auto()
    OTHER = auto()


class Members:
    """Judges the members of one archive, in their order."""

    def __init__(self, members_max: int = MEMBERS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._members_max = members_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._kinds: dict[str, Kind] = {"": Kind.FOLDER}

    def admit(self, name: str, kind: Kind, target: str, size: int) -> str:
        """The path of a member within the folder, "" for the folder itself. Raises LoadError where it must not be.

        `target` is where a link leads, `size` how many bytes a file has.
        """
        self._count += 1
        self._bytes += size
        if self._count > self._members_max:
            raise LoadError(f"it has more than {self._members_max} members")
        if self._bytes > self._bytes_max:
            raise LoadError(f"its files are larger than {self._bytes_max} bytes together")
        path = _inner(name)
        if path is None:
            raise LoadError(f"its member '{name}' would be outside the folder that it is unpacked to")
        if kind is Kind.OTHER:
            raise LoadError(f"its member '{name}' is a device, a pipe or the like")
        self._place(path, kind)
        if kind is Kind.LINK and not _leads_inside(path, target):
            raise LoadError(
                f"its member '{name}' is a link to '{target}', outside the folder that it is unpacked to;"
                " pack the file itself instead"
            )
        if kind is Kind.HARD_LINK and self._kinds.get(_inner(target) or "") is not Kind.FILE:
            raise LoadError(f"its member '{name}' is another name of '{target}', which is no file that came before it")
        if kind is Kind.HARD_LINK:
            self._kinds[path] = Kind.FILE
        return path

    def _place(self, path: str, kind: Kind) -> None:
        """Take note of a path and of the folders that it makes."""
        parts = path.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            if self._kinds.setdefault(folder, Kind.FOLDER) is not Kind.FOLDER:
                raise LoadError(f"its member '{path}' is below '{folder}', which is no folder")
        if kind is Kind.FOLDER and self._kinds.get(path) is Kind.FOLDER:
            return
        if path in self._kinds:
            raise LoadError(f"its member '{path}' is there twice")
        self._kinds[path] = kind


def _inner(name: str) -> str | None:
    """A name without what means nothing in it; None if it is absolute, goes up, or is no name."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if name.startswith("/") or ".." in parts or "\0" in name else "/".join(parts)


def _leads_inside(path: str, target: str) -> bool:
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return not target.startswith("/") and "\0" not in target and ".." not in parts[ups:] and ups <= path.count("/")
