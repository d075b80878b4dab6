# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server's response cache: a library, and the threads that call it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.native.libraries import explain, prepare
from pyruntime.utils.errors import LoadError

if TYPE_CHECKING:  # the extension is loaded with the first model that needs it
    from pyruntime.runtime.native import _triton

_LOG = logging.getLogger("pyruntime.caching")

_T = TypeVar("_T")

ENTRY_POINT = "TRITONCACHE_CacheInitialize"
# The number of simultaneous lookups and insertions. A local cache has one lock for all of them; a remote cache waits
# for the network.
THREADS_MAX = 8
LOCAL = "local"
_NOT_OURS = (
    "; the cache 'local', which --response-cache-byte-size stands for too, is NVIDIA's libtritoncache_local.so, and "
    "does not come with pyruntime: put it there, or name another cache"
)


class ResponseCache:
    """See the module. No other method may be called before `open` has returned."""

    def __init__(self, name: str, config: Mapping[str, str], directory: str, host: NativeHost) -> None:
        """`config` is passed to the library; `directory` contains the folders of caches."""
        self.name = name
        self._config = config
        self._directory = directory
        self._host = host
        self._handle: Any = None  # a _triton.Cache from `open` on
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="cache")

    @property
    def failure(self) -> type[Exception]:
        """The type of the errors of `lookup` and `insert`."""
        failure: type[Exception] = self._host.native.NativeError
        return failure

    async def open(self) -> None:
        """Load the library. Raises LoadError."""
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
        """The entry of a key, None if there is none. Blocks. Raises `failure`."""
        buffers = self._handle.lookup(key)
        return memoryview(buffers[0]) if buffers else None

    def insert(self, key: str, entry: bytes) -> None:
        """Insert an entry under a key, unless the key has one. Blocks. Raises `failure`."""
        self._handle.insert(key, entry)

    def post(self, step: Callable[[], _T], call_back: Callable[[asyncio.Future[_T]], None]) -> None:
        """Run `step` on a thread, and then call `call_back` with its future on the event loop's thread."""
        asyncio.get_running_loop().run_in_executor(self._pool, step).add_done_callback(call_back)

    async def close(self) -> None:
        """Finalize the cache. No model may use it any more."""
        self._pool.shutdown(wait=False)
        try:
            await self._host.threads.end(self._handle.finalize)
        except LoadError as exc:
            _LOG.error("cache '%s' failed to finalize: %s", self.name, exc)


def create_cache(config: Mapping[str, Mapping[str, str]], directory: str, host: NativeHost) -> ResponseCache | None:
    """The cache that the settings ask for, to be opened; None if they ask for none."""
    if not config:
        return None
    ((name, values),) = config.items()  # the settings refuse more than one
    return ResponseCache(name, values, directory, host)


async def _open(path: str, name: str, host: NativeHost) -> _triton.Cache:
    await asyncio.to_thread(prepare, path, model=name, entry_point=ENTRY_POINT)
    handle: _triton.Cache = host.native.Cache(path)
    try:
        await host.threads.run(handle.open)
    except LoadError as exc:
        raise LoadError(explain(str(exc), path, name)) from exc
    return handle


def _find(name: str, directory: str) -> str:
    library = f"libtritoncache_{name}.so"
    path = os.path.join(directory, name, library)
    if "/" in name or not os.path.isfile(path):
        more = _NOT_OURS if name == LOCAL else ""
        raise LoadError(f"unable to find '{library}' for cache. Searched: {directory}{more}")
    return path
