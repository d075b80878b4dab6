# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Completes the configuration of a Python model by its own code, without loading the model.

The code runs in a stub of its own, in the environment of the model, as it does when a server loads the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from pyruntime.runtime.config.autocomplete import complete
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.loaders.native_options import model_location
from pyruntime.runtime.loaders.stub_pythons import prepare_python
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.repository.backends import find_backend
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError


async def complete_alone(
    draft: Draft, version: int, backend_directories: Sequence[str], settings: ServerSettings
) -> Config:
    """The configuration of `draft` as the code of this version completes it. Raises LoadError. Safe to cancel."""
    backend = find_backend(draft.identity, draft.folder.path, version, backend_directories)
    if backend.kind in ("native", "ensemble"):
        raise LoadError(f"the backend of '{draft.folder.name}' is no Python code, so that only a server can load it")
    location = model_location(backend, draft.identity, draft.folder.path, version, settings, backend_directories[0])
    environment = await prepare_python(draft, location)
    growth = settings.python_backend.shm_growth_byte_size
    memory = RequestMemory(draft.folder.name, 0, growth)
    try:
        stub = await StubConnection.open(draft.folder.name, memory, growth, environment)
        try:
            returned = await stub.complete(location, render(draft.config).decode())
        finally:
            stub.kill("its model is complete")
            await stub.wait_exited()
    finally:
        memory.close()
    if not returned:
        raise LoadError(f"the backend '{backend.name}' does not complete configurations")
    return complete(draft.config, orjson.loads(returned))
