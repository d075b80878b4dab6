# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Validates the name for `pyruntime new`, and fills in the placeholders of its templates. (pure)

A template is a folder of files whose names end in `.in`. In their paths and in their text, `@name@` stands for the
given name, and `@Class@` for the same name as a class name. The prefix `dot_` stands for a leading dot, because Python
packages omit hidden files.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

SUFFIX = ".in"
# The longest file name with the name in it is `libtriton_<name>.so`, and file systems allow 255 bytes.
NAME_LENGTH_MAX = 200

_MODEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
_BACKEND_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
# The built-in backend of every model.py: the server would never search for another one of this name.
_TAKEN = "python"


class NameProblem(ValueError):
    """The name is not valid; the message is a sentence."""


class Names(NamedTuple):
    """The values of the placeholders."""

    name: str
    class_name: str

    @classmethod
    def of_model(cls, name: str) -> Names:
        """For a model. Raises NameProblem."""
        return cls._of(name, _MODEL_NAME, 'letters, digits, "_" and "-"')

    @classmethod
    def of_backend(cls, name: str) -> Names:
        """For a backend, whose name is part of the names of libraries and classes. Raises NameProblem."""
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
        """`text` with its placeholders replaced."""
        return text.replace("@name@", self.name).replace("@Class@", self.class_name)

    def target(self, template: PurePosixPath) -> PurePosixPath:
        """The path to write the file of a template to; both are relative."""
        parts = [_shown(part) for part in template.with_suffix("").parts]
        return PurePosixPath(*map(self.fill, parts))


def _shown(part: str) -> str:
    return f".{part.removeprefix('dot_')}" if part.startswith("dot_") else part
