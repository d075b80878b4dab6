# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which members of an archive may be unpacked. (pure)

Archives are untrusted: unpacking one must write only below its folder. The rules:

- a name is relative, has no "..", and occurs once;
- no member lies below a link, so every member's folder is a real folder, as deep as its name says;
- a link leads to a path inside the folder, and has ".." only at its beginning: the parts after that are folders, or
  links that obey the same rule;
- a member is in a limited number of folders;
- no member is a device, a pipe or a socket.
"""

from __future__ import annotations

from enum import Enum, auto

from pyruntime.utils.errors import LoadError

# A conda environment for scientific work has some ten thousand files.
MEMBERS_MAX = 1_000_000
# Unpacked. The largest environments, with several GPU frameworks, have a quarter of this.
BYTES_MAX = 64 << 30
# Of folders in each other. Environments have some twenty; making and removing a thousand exhausts Python's stack.
LEVELS_MAX = 200
# Of a name in a message.
NAME_CHARS_SHOWN_MAX = 100


class Kind(Enum):
    """The kind of a member."""

    FOLDER = auto()
    FILE = auto()
    LINK = auto()
    HARD_LINK = auto()
    OTHER = auto()


class Members:
    """Checks the members of one archive, in their order."""

    def __init__(self, members_max: int = MEMBERS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._members_max = members_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._kinds: dict[str, Kind] = {"": Kind.FOLDER}

    def admit(self, name: str, kind: Kind, target: str, size: int) -> str:
        """The path of a member within the folder, "" for the folder itself. Raises LoadError if a rule forbids it.

        `target` is the target of a link, `size` the size of a file in bytes.
        """
        self._count += 1
        self._bytes += size
        if self._count > self._members_max:
            raise LoadError(f"it has more than {self._members_max} members")
        if self._bytes > self._bytes_max:
            raise LoadError(f"its files are larger than {self._bytes_max} bytes together")
        path = _inner(name)
        if path is not None and path.count("/") > LEVELS_MAX:
            raise LoadError(
                f"its member '{name[:NAME_CHARS_SHOWN_MAX]}...' is in {path.count('/')} folders in each other, and at "
                f"most {LEVELS_MAX} are unpacked"
            )
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
        """Record a path and its parent folders. Raises LoadError if it exists, or lies below something else."""
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
    """A name without empty and "." parts; None if it is absolute, has "..", or contains a null character."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if name.startswith("/") or ".." in parts or "\0" in name else "/".join(parts)


def _leads_inside(path: str, target: str) -> bool:
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return not target.startswith("/") and "\0" not in target and ".." not in parts[ups:] and ups <= path.count("/")
