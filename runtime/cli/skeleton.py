# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What `pyruntime new` makes of its templates: names that may be taken, and placeholders that are filled. (pure)

A template is a folder of files whose names end in `.in`. In their paths and in their text, `@name@` stands for the
name that was asked for, and `@Class@` for the same as the name of a class. What begins with a dot is kept as `dot_`:
packages do not carry hidden files.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

SUFFIX = ".in"
# The longest name of a file that is made of a name is `libtriton_<name>.so`, and file systems allow 255 bytes.
NAME_LENGTH_MAX = 200

_MODEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
_BACKEND_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
# The backend that every model.py has; another one of this name would never be looked for.
_TAKEN = "python"


class NameProblem(ValueError):
    """Why a name cannot be taken, as a sentence."""


class Names(NamedTuple):
    """What the placeholders stand for."""

    name: str
    class_name: str

    @classmethod
    def of_model(cls, name: str) -> Names:
        """For a model. Raises NameProblem."""
        return cls._of(name, _MODEL_NAME, 'letters, digits, "_" and "-"')

    @classmethod
    def of_backend(cls, name: str) -> Names:
        """For a backend, which gives its name to libraries and classes. Raises NameProblem."""
        if name == _TAKEN:
            raise NameProblem(f"'{name}' is the backend that executes a model.py; take another name")
        return cls._of(name, _BACKEND_NAME, 'letters, digits and "_"')

    @classmethod
    def _of(cls, name: str, pattern: re.Pattern[str], characters: str) -> Names:
        if not pattern.fullmatch(name):
            raise NameProblem(f"{name!r} cannot be the name: it must begin with a letter, and have {characters} alone")
        if len(name) > NAME_LENGTH_MAX:
            raise NameProblem(f"a name may have {NAME_LENGTH_MAX} characters, this one has {len(name)}")
        return cls(name, "".join(part[:1].upper() + part[1:] for part in re.split("[_-]", name)))

    def fill(self, text: str) -> str:
        """`text` with names in place of the placeholders."""
        return text.replace("@name@", self.name).replace("@Class@", self.class_name)

    def target(self, template: PurePosixPath) -> PurePosixPath:
        """Where the file of a template belongs; both paths are relative."""
        parts = [_shown(part) for part in template.with_suffix("").parts]
        return PurePosixPath(*map(self.fill, parts))


def _shown(part: str) -> str:
    return f".{part.removeprefix('dot_')}" if part.startswith("dot_") else part
