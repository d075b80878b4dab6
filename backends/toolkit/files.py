# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the model file and the libraries of custom operations of one version of a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ContextManager, Sequence

import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.looks import fault_in_folder, fault_of_file
from pyruntime.backends.toolkit.settings import Settings
from pyruntime.utils.errors import LoadError
from pyruntime.utils.private_libraries import private_libraries


def find_model_file(settings: Settings, version_dir: str, default_names: Sequence[str]) -> str:
    """The path of the model file or folder in `version_dir`. Raises LoadError.

    A configured name other than the first default is taken as it is. The server fills in that first default, so any of
    the defaults may stand for it: the first one that exists.
    """
    names = list(default_names)
    if settings.filename not in ("", names[0]):
        names = [settings.filename]
    for name in names:
        path = os.path.join(version_dir, name)
        if os.path.exists(path):
            for file in (path, os.path.join(path, name), os.path.join(path, "saved_model.pb")):
                if os.path.isfile(file):
                    check_file(settings.name, file)
            return path
    raise LoadError(
        f"unable to find '{os.path.join(version_dir, names[0])}' for model '{settings.name}': its version folder needs "
        f"{' or '.join(names)}; default_model_filename in config.pbtxt names another file"
    )


def check_file(model: str, path: str) -> None:
    """Raise LoadError for what is wrong with a file by its looks: frameworks would explain it badly, or not at all."""
    fault = fault_of_file(Path(path))
    if fault:
        raise LoadError(f"model '{model}': {fault}")


def unloadable(model: str, path: str, reason: str) -> LoadError:
    """The error for a file or folder that its framework does not load, for this reason; or for a worse one beside it.

    What belongs to a model may be a pointer of Git LFS, or cut off. Files that the model does not use may be so, too:
    so nobody looks before it fails.
    """
    folder = Path(path) if os.path.isdir(path) else Path(path).parent
    try:
        # A path that does not exist is an id of a hub.
        fault = fault_in_folder(folder) if os.path.exists(path) else ""
    except OSError:  # the reason is worth more
        fault = ""
    return LoadError(f"model '{model}': '{path}' cannot be loaded: {reason}{f'. Beside it {fault}' if fault else ''}")


def find_libraries(settings: Settings, version_dir: str) -> list[str]:
    """The absolute paths of the libraries in `model_operations`, in their order. Raises LoadError.

    A relative path is one below the version's folder, else below the model's folder.
    """
    return [_find_library(settings.name, name, version_dir) for name in settings.libraries]


def kept_libraries(libraries: Sequence[str], version_dir: str) -> ContextManager[None]:
    """`with kept_libraries(...)`: libraries that are loaded meanwhile do not change with their files.

    It is for `libraries`, and for all in the model's folder, where they may have neighbours.
    """
    return private_libraries([*libraries, os.path.dirname(version_dir)], pb_utils.Logger.log_warn)


def _find_library(model: str, name: str, version_dir: str) -> str:
    folders = [version_dir, os.path.dirname(version_dir)]
    # An absolute name stays as it is: join drops the folder.
    paths = [os.path.abspath(os.path.join(folder, name)) for folder in folders]
    for path in paths:
        if os.path.isfile(path):
            return path
    raise LoadError(
        f"model '{model}' has the op_library_filename '{name}', which does not exist: a relative path must lie below "
        f"the version's folder, {folders[0]}, or the model's folder"
    )
