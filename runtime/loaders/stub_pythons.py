# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the Python that the stubs of a model are started with, and prepares it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyruntime.runtime.environments.environment import Preloaded, StubPython
from pyruntime.runtime.environments.forms import PARAMETER
from pyruntime.runtime.loaders.model_files import environment_path
from pyruntime.runtime.repository.backends import OUR_BACKENDS
from pyruntime.runtime.repository.draft import Draft

# The frameworks of backends of ours whose import takes long and much memory, and starts no threads, which a fork would
# lose.
PRELOADS = {"pytorch": "torch"}


async def prepare_python(draft: Draft, location: Mapping[str, str]) -> StubPython:
    """The Python of a model's stubs: the environment that it names, or the server's own. Raises LoadError."""
    backend_dir = location.get("backend_dir", "")
    wanted = environment_path(draft.identity.parameters.get(PARAMETER, ""), backend_dir)
    if wanted:
        # Few models have one.
        from pyruntime.runtime.environments.prepare import prepare

        return await prepare(wanted, draft.folder.path)
    return preloaded(backend_dir)


def preloaded(backend_dir: str) -> Preloaded | None:
    """The server's own Python with the framework of a backend, None for the backends of others."""
    folder, name = os.path.split(backend_dir)
    return Preloaded(PRELOADS[name]) if folder == OUR_BACKENDS and name in PRELOADS else None
