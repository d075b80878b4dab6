# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What EXECUTION_ENV_PATH may say, as text. (pure)"""

from __future__ import annotations

import posixpath
from enum import Enum, auto

PARAMETER = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
# Of a Python-based backend, beside its model.py: the environment of its models that name none themselves.
DEFAULT_ARCHIVE = "pb_exec_env_model.py.tar.gz"

# What the standard library unpacks.
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ACCEPTED = (
    "an archive made by conda-pack (.tar.gz), the folder of a conda or virtual environment, a Python interpreter,"
    " a requirements file (.txt), or a Python file (.py) with a `# /// script` block"
)


class Form(Enum):
    """What can be at the path. Files are told apart by their names; any other is taken for an interpreter."""

    FOLDER = auto()
    ARCHIVE = auto()
    REQUIREMENTS = auto()
    SCRIPT = auto()
    INTERPRETER = auto()


def expand(path: str, model_dir: str) -> str:
    """The path that is meant: absolute if `model_dir` is, from where relative paths count."""
    return posixpath.join(model_dir, path.replace(MODEL_DIRECTORY, model_dir))


def form_of(path: str) -> Form:
    """What a file is, by its name."""
    name = posixpath.basename(path).lower()
    if name.endswith(ARCHIVE_SUFFIXES):
        return Form.ARCHIVE
    if name.endswith(".txt"):
        return Form.REQUIREMENTS
    if name.endswith(".py"):
        return Form.SCRIPT
    return Form.INTERPRETER
