# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Creates a model's folder from the files of a load request."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyruntime.runtime.repository.scan import ModelFolder, read_folder
from pyruntime.utils.errors import LoadError

_LOG = logging.getLogger("pyruntime.repository")


class OverrideFolder:
    """One such folder, which no other user can read. It exists while it has holders; its creator is the first one."""

    def __init__(self, name: str, files: Mapping[str, bytes | memoryview]) -> None:
        """Write `files`, by their paths, which must be checked before. Raises LoadError, and then leaves no files."""
        self._holders = 1
        try:
            self._parent = tempfile.mkdtemp(prefix="pyruntime_override_")
        except OSError as exc:
            raise _not_written(name, exc.strerror) from exc
        # The name of the folder is the name of the model.
        self.path = Path(self._parent, name)
        try:
            self.path.mkdir()
            for path, content in files.items():
                target = self.path / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except (OSError, ValueError) as exc:
            self.release()
            raise _not_written(name, exc.strerror if isinstance(exc, OSError) else str(exc)) from exc

    def read(self) -> ModelFolder:
        """The folder like those of a repository, but without a configuration file."""
        return read_folder(self.path, None)

    def hold(self) -> None:
        """Add a holder."""
        self._holders += 1

    async def retire(self) -> None:
        """A version that was loaded from it is about to end. No effect."""

    def release(self) -> None:
        """Release one hold. The last release removes the folder."""
        self._holders -= 1
        if not self._holders:
            try:
                shutil.rmtree(self._parent)
            except OSError as exc:
                _LOG.warning("'%s' cannot be removed: %s", self._parent, exc.strerror)


def _not_written(name: str, reason: str | None) -> LoadError:
    return LoadError(f"the override files of model '{name}' cannot be written: {reason}")
