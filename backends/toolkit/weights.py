# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Makes weights that a framework has mapped independent of their files, so that a model computes as it was loaded.

Frameworks map weights from files of the repository, and whoever writes to such a file writes to the model that serves.
So each mapping is replaced once the model is loaded: by memory of this process, or, for large weights of several
instances, by a copy of the file in the temporary folder, which all of them map and the last one removes.
"""

from __future__ import annotations

import os
import shutil
import threading
from typing import Dict, List

import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.settings import Settings
from pyruntime.backends.toolkit.shared_files import SHARED_BYTES_MIN, SharedFile, identity_of, share_file
from pyruntime.utils.private_mappings import Mapping, is_in, mappings, replace, replace_by

# The name of a copy, in a folder of its own.
_COPY = "weights"
_CHUNK_BYTES = 1 << 30

# Two instances may be threads of one process.
_lock = threading.Lock()


class KeptWeights:
    """The weights of one instance that are independent of the files below `folder`. Must be closed."""

    def __init__(self, settings: Settings, folder: str) -> None:
        """All that is mapped now is a part of a model that is loaded. Blocks while it is copied."""
        self._shared: List[SharedFile] = []
        self._settings = settings
        with _lock:
            for path, parts in _mapped(os.path.realpath(folder)).items():
                try:
                    self._keep(path, parts)
                except OSError as exc:
                    pb_utils.Logger.log_warn(
                        f"'{path}' stays mapped from its file, because it cannot be copied: {exc}. Do not write to it "
                        f"while model '{settings.name}' serves; put another file in its place"
                    )

    def close(self) -> None:
        """Give up what instances share. What is mapped stays valid."""
        for each in self._shared:
            each.close()
        self._shared.clear()

    def _keep(self, path: str, parts: List[Mapping]) -> None:
        may_share = self._settings.instance_count > 1 and sum(part.size for part in parts) >= SHARED_BYTES_MIN
        if not (may_share and self._share(path, parts)):
            replace(path, parts)

    def _share(self, path: str, parts: List[Mapping]) -> bool:
        """Put the copy that all instances share in the place of the file, if it has what was loaded."""
        try:
            shared = share_file(
                "pyruntime-weights", _COPY, [identity_of(path)], os.path.getsize(path), lambda made: _copy(path, made)
            )
        except OSError as exc:
            pb_utils.Logger.log_warn(
                f"the instances of model '{self._settings.name}' do not share the weights in '{path}', so that each "
                f"has a copy: {exc}"
            )
            return False
        self._shared.append(shared)
        return replace_by(shared.path, parts)


def _mapped(folder: str) -> Dict[str, List[Mapping]]:
    """What is mapped of each file below a folder, but for libraries, and for files that this process writes to."""
    found: Dict[str, List[Mapping]] = {}
    for each in mappings():
        if each.flags[0] == "r" and each.flags[1:] != "w-s" and is_in(each.path, [folder]):
            found.setdefault(each.path, []).append(each)
    return {path: parts for path, parts in found.items() if not any("x" in part.flags for part in parts)}


def _copy(path: str, made: str) -> None:
    """Copy a file; without taking room, if the file system can. Raises OSError."""
    try:
        with open(path, "rb") as source, open(made, "wb") as target:
            while os.copy_file_range(source.fileno(), target.fileno(), _CHUNK_BYTES):
                pass
    except OSError:  # older kernels do not copy from one file system to another
        shutil.copyfile(path, made)
