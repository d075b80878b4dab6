# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The inputs of a build of an environment, and the key by which the cache finds it. (pure)"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

# To be increased when the same recipe builds something else, so that the cache does not return older environments.
FORMAT = 1
_NAME = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:[\[<>=!~;@(,]|\s|$)")
_INCLUDE = re.compile(r"(-r|--requirement|-c|--constraint)(?:=|\s)?\s*(\S.*)")


@dataclass(frozen=True, slots=True)
class Recipe:
    """An environment to build, with its requirements and constraints as lines of requirements files.

    `python` is the path of an interpreter, or a specifier by which uv finds one. `version` is the version of that
    Python, as exactly as known. Relative paths in lines start at `folder`.
    """

    python: str
    version: str
    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    folder: str

    @property
    def needs_numpy(self) -> bool:
        """Whether to add numpy, which the stub needs, to the requirements.

        If the requirements have hashes, pip requires one for every package, so nothing can be added.
        """
        hashed = any("--hash" in line or line == "--require-hashes" for line in self.requirements)
        return not hashed and "numpy" not in map(requirement_name, self.requirements)

    @property
    def key(self) -> str:
        """The key in the cache: equal for recipes that build the same environment, if the package index is the same."""
        place = self.folder if any(map(_is_local, self.requirements)) else ""
        return digest("built", self.version, list(self.requirements), list(self.constraints), place)


def digest(kind: str, *parts: object) -> str:
    """The name of a folder or file in the cache: its kind, and a hash of its inputs."""
    text = json.dumps([FORMAT, kind, *parts])
    return f"{kind}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def effective_lines(text: str) -> list[str]:
    """The lines of a requirements file, without comments and empty lines, and with continued lines joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [" ".join(line.split()) for line in lines if line]


def included_file(line: str) -> tuple[str, bool] | None:
    """The file that a line includes, and whether as constraints; None for other lines, and for a URL."""
    match = _INCLUDE.fullmatch(line)
    if match is None or "://" in match[2]:
        return None
    return match[2], match[1] in ("-c", "--constraint")


def requirement_name(line: str) -> str:
    """The normalised name of the package that a line requires; "" for other lines."""
    match = _NAME.match(line)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


def _is_local(line: str) -> bool:
    """Whether the meaning of a line may depend on the folder of its file."""
    return (
        line.startswith((".", "-e", "--editable", "-f", "--find-links"))
        or line.endswith((".whl", ".tar.gz", ".zip"))
        or ("/" in line and "://" not in line)
        or "file:" in line
    )
