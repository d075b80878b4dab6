# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the library with the custom batching strategy of a native model, if it has one."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.config.unsupported import BATCH_STRATEGY
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.native.libraries import libraries_of, prepare
from pyruntime.utils.errors import LoadError

if TYPE_CHECKING:  # the extension is loaded with the first model that needs it
    from pyruntime.runtime.native import _triton

_LOG = logging.getLogger("pyruntime.native")

LIBRARY = "batchstrategy.so"
ENTRY_POINT = "TRITONBACKEND_ModelBatchIncludeRequest"


def find_strategy(spec: ModelSpec, folders: Sequence[str]) -> str:
    """The path of a model's library: the one that it names, else that in the first folder that has one; "" if none.

    Raises LoadError if the model names a path without a file.
    """
    named = spec.parameters.get(BATCH_STRATEGY, "")
    if spec.dynamic_batching is None:
        if named and spec.sequence_batching is not None:
            _LOG.error("%s cannot be specified with sequence batcher, using default batching strategy", BATCH_STRATEGY)
        elif named:
            _LOG.warning("model '%s' has a %s but no dynamic_batching: nothing is batched", spec.name, BATCH_STRATEGY)
        return ""
    if named:
        if not os.path.isfile(named):
            raise LoadError(f"Batching library path not found: {named}")
        return named
    paths = [os.path.join(folder, LIBRARY) for folder in folders]
    return next((path for path in paths if os.path.isfile(path)), "")


async def load_strategy(path: str, model: _triton.Model, name: str, host: NativeHost) -> _triton.BatchStrategy:
    """Load the library at `path`, and initialise it for `model`. Raises LoadError."""
    _LOG.info("Loading custom batching strategy library %s for model %s", path, name)
    libraries = await asyncio.to_thread(libraries_of, path)
    await asyncio.to_thread(prepare, path, model=name, entry_point=ENTRY_POINT)
    strategy: _triton.BatchStrategy = host.native.BatchStrategy(model, path)
    await host.threads.run(strategy.open)
    await asyncio.to_thread(libraries.keep, _LOG.warning)
    await host.threads.run(strategy.initialize, undo=strategy.finalize)
    return strategy
