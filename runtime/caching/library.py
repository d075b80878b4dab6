# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A response cache that is a library made for Triton: libtritoncache_<name>.so."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.native.libraries import explain, prepare
from pyruntime.utils.errors import LoadError

if TYPE_CHECKING:  # the extension is loaded with the first model that needs it
    from pyruntime.runtime.native import _triton

_LOG = logging.getLogger("pyruntime.caching")

ENTRY_POINT = "TRITONCACHE_CacheInitialize"


def library_of(name: str, directory: str) -> str:
    """The path of the library of a cache, whether or not it is there; `directory` contains the folders of caches."""
    return os.path.join(directory, name, f"libtritoncache_{name}.so")


class LibraryCache(ResponseCache):
    """See the module. `config` is passed to the library; `directory` contains the folders of caches."""

    def __init__(self, name: str, config: Mapping[str, str], directory: str, host: NativeHost) -> None:
        super().__init__(name)
        self._config = config
        self._directory = directory
        self._host = host
        self._handle: Any = None  # a _triton.Cache from `open` on

    @property
    def failure(self) -> type[Exception]:
        """See ResponseCache."""
        failure: type[Exception] = self._host.native.NativeError
        return failure

    async def open(self) -> None:
        """See ResponseCache."""
        host, name = self._host, self.name
        path = _find(name, self._directory)
        try:
            host.begin("a library", name)
            handle = await _open(path, name, host)
        except LoadError as exc:
            # The message of `prepare` is worded for models, its usual callers.
            raise LoadError(str(exc).replace(f"model '{name}'", f"cache '{name}'")) from exc
        text = orjson.dumps(dict(self._config)).decode()
        await host.threads.run(lambda: handle.initialize(text), undo=handle.finalize)
        self._handle = handle
        _LOG.info("Response cache '%s' is %s, with %s", name, path, text)

    def lookup(self, key: str) -> memoryview | None:
        """See ResponseCache."""
        buffers = self._handle.lookup(key)
        return memoryview(buffers[0]) if buffers else None

    def insert(self, key: str, entry: bytes) -> None:
        """See ResponseCache."""
        self._handle.insert(key, entry)

    async def close(self) -> None:
        """See ResponseCache."""
        await super().close()
        try:
            await self._host.threads.end(self._handle.finalize)
        except LoadError as exc:
            _LOG.error("cache '%s' failed to finalize: %s", self.name, exc)


async def _open(path: str, name: str, host: NativeHost) -> _triton.Cache:
    await asyncio.to_thread(prepare, path, model=name, entry_point=ENTRY_POINT)
    handle: _triton.Cache = host.native.Cache(path)
    try:
        await host.threads.run(handle.open)
    except LoadError as exc:
        raise LoadError(explain(str(exc), path, name)) from exc
    return handle


def _find(name: str, directory: str) -> str:
    path = library_of(name, directory)
    if "/" in name or not os.path.isfile(path):
        raise LoadError(f"unable to find 'libtritoncache_{name}.so' for cache. Searched: {directory}")
    return path
