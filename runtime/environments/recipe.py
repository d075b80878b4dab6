# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What an environment is built from, and when two are the same. (pure)"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

# Raised when what is built from the same recipe changes, so that older environments are not taken for it.
FORMAT = 1
_NAME = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:[\[<>=!~;@(,]|\s|$)")
_INCLUDE = re.compile(r"(-r|--requirement|-c|--constraint)(?:=|\s)?\s*(\S.*)")


@dataclass(frozen=True, slots=True)
class Recipe:
    """An environment to build: what it must have, and the lines that constrain of which versions that may be.

    `python` is an interpreter's path, or a specifier for uv to find one by. `version` says which Python that is, as
    exactly as it is known. `folder` is where relative paths count from.
    """

    python: str
    version: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    folder: str

    @property
    def needs_numpy(self) -> bool:
        """Whether numpy, which the stub cannot do without, has to be asked for on top.

        With hashes every package must have been written down with its own, and nothing can be added.
        """
        hashed = any("--hash" in line or line == "--require-hashes" for line in self.requirements)
        return not hashed and "numpy" not in map(requirement_name, self.requirements)

    @property
    def key(self) -> str:
        """The same for recipes that give the same environment, as far as a package index does."""
        place = self.folder if any(map(_is_local, self.requirements)) else ""
        return digest("built", self.version, list(self.requirements), list(self.constraints), place)


def digest(kind: str, *parts: object) -> str:
    """A name for a folder in the cache: what kind of thing it is, and a hash of what it is made of."""
    text = json.dumps([FORMAT, kind, *parts])
    return f"{kind}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def effective_lines(text: str) -> list[str]:
    """The lines of a requirements file that say something, continued lines joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [" ".join(line.split()) for line in lines if line]


def included_file(line: str) -> tuple[str, bool] | None:
    """The file that a line includes, and whether as constraints; None for another kind of line, and for a URL."""
    match = _INCLUDE.fullmatch(line)
    if match is None or "://" in match[2]:
        return None
    return match[2], match[1] in ("-c", "--constraint")


def requirement_name(line: str) -> str:
    """The package that a line requires by name, in its normal form; "" if it is another kind of line."""
    match = _NAME.match(line)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


def _is_local(line: str) -> bool:
    """Whether what a line means may depend on the folder that it is read in."""
    return (
        line.startswith((".", "-e", "--editable", "-f", "--find-links"))
        or line.endswith((".whl", ".tar.gz", ".zip"))
        or ("/" in line and "://" not in line)
        or "file:" in line
    )
