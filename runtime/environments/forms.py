# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The forms that EXECUTION_ENV_PATH accepts. (pure)"""

from __future__ import annotations

import posixpath
from enum import Enum, auto

PARAMETER = "EXECUTION_ENV_PATH"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
# A Python-based backend may have this archive beside its model.py, as the environment of models that name none.
DEFAULT_ARCHIVE = "pb_exec_env_model.py.tar.gz"

# The formats that the standard library unpacks.
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ACCEPTED = (
    "an archive made by conda-pack (.tar.gz), the folder of a conda or virtual environment, a Python interpreter,"
    " a requirements file (.txt), or a Python file (.py) with a `# /// script` block"
)


class Form(Enum):
    """The kinds of paths. Files are distinguished by their suffix; one with any other suffix is an interpreter."""

    FOLDER = auto()
    ARCHIVE = auto()
    REQUIREMENTS = auto()
    SCRIPT = auto()
    INTERPRETER = auto()


def expand(path: str, model_dir: str) -> str:
    """`path` with the model's directory filled in. Relative paths start at `model_dir`."""
    return posixpath.join(model_dir, path.replace(MODEL_DIRECTORY, model_dir))


def is_anchored(path: str) -> bool:
    """Whether `path` names one place only: it is absolute, or begins with the model's directory."""
    return path.startswith(("/", MODEL_DIRECTORY))


def form_of(path: str) -> Form:
    """The form of a file, by its name."""
    name = posixpath.basename(path).lower()
    if name.endswith(ARCHIVE_SUFFIXES):
        return Form.ARCHIVE
    if name.endswith(".txt"):
        return Form.REQUIREMENTS
    if name.endswith(".py"):
        return Form.SCRIPT
    return Form.INTERPRETER
