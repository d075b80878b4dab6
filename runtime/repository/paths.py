# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which file a name in a configuration means: always one below the folder that the name belongs to. (pure)

A client that may load models brings the configuration, and so these names. It brings no links: those in a folder are of
whoever filled the repository, and may lead anywhere, because many repositories consist of links.
"""

from __future__ import annotations

from pathlib import PurePosixPath


def path_below(folder: str, name: str) -> str | None:
    """The path that `name` means in `folder`, which is absolute; None if it leads out of the folder.

    A name with ".." is resolved as text, and not by the links that it passes. Files need not exist.
    """
    if name.startswith("/"):
        return None
    parts: list[str] = []
    for part in PurePosixPath(name).parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return str(PurePosixPath(folder, *parts))
