# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Creates the response cache that the settings ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.caching.library import LibraryCache, library_of
from pyruntime.runtime.caching.local import LocalCache
from pyruntime.runtime.caching.redis import RedisCache
from pyruntime.runtime.instances.native.host import NativeHost

# The caches that need no library. A library of the same name comes first.
OURS = {"local": LocalCache, "redis": RedisCache}


def create_cache(config: Mapping[str, Mapping[str, str]], directory: str, host: NativeHost) -> ResponseCache | None:
    """The cache that the settings ask for, to be opened; None if they ask for none."""
    if not config:
        return None
    ((name, values),) = config.items()  # the settings refuse more than one
    if name in OURS and not os.path.isfile(library_of(name, directory)):
        return OURS[name](name, values)
    return LibraryCache(name, values, directory, host)
