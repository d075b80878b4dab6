# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model's folder made of the files that a request to load it brought."""

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
    """One such folder, which nobody else may look into. It is there while somebody holds it; who makes it does."""

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write `files`, by their paths, which have been checked. Raises LoadError; nothing is left of it then."""
        self._holders = 1
        # A model is known by the name of its folder.
        self._parent = tempfile.mkdtemp(prefix="pyruntime_override_")
        self.path = Path(self._parent, name)
        try:
            self.path.mkdir()
            for path, content in files.items():
                target = self.path / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except (OSError, ValueError) as exc:
            self.release()
            reason = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise LoadError(f"the override files of model '{name}' cannot be written: {reason}") from exc

    def read(self) -> ModelFolder:
        """The folder as the repository's own are seen. It has no configuration of its own."""
        return read_folder(self.path, None)

    def hold(self) -> None:
        """Somebody else needs the folder too."""
        self._holders += 1

    async def retire(self) -> None:
        """A version that was loaded from it is about to end, which changes nothing yet."""

    def release(self) -> None:
        """Who held it does not need it any more; the last one to say so removes it."""
        self._holders -= 1
        if not self._holders:
            try:
                shutil.rmtree(self._parent)
            except OSError as exc:
                _LOG.warning("'%s' cannot be removed: %s", self._parent, exc.strerror)
