# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Creates the response cache that the settings ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.instances.native.host import NativeHost


def create_cache(config: Mapping[str, Mapping[str, str]], directory: str, host: NativeHost) -> ResponseCache | None:
    """The cache that the settings ask for, to be opened; None if they ask for none."""
    if not config:
        return None
    # Here, because a server without a cache starts faster without them.
    from pyruntime.runtime.caching.library import LibraryCache, library_of
    from pyruntime.runtime.caching.local import LocalCache
    from pyruntime.runtime.caching.redis import RedisCache

    ((name, values),) = config.items()  # the settings refuse more than one
    # The caches that need no library. A library of the same name comes first.
    ours = {"local": LocalCache, "redis": RedisCache}
    if name in ours and not os.path.isfile(library_of(name, directory)):
        return ours[name](name, values)
    return LibraryCache(name, values, directory, host)
