# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The response cache `redis`: entries are in a Redis server, which several servers may share.

Its settings are those of Triton's cache of this name. Redis evicts entries by its own settings.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

from pyruntime.runtime.caching.cache import THREADS_MAX, ResponseCache
from pyruntime.utils.errors import LoadError

_LOG = logging.getLogger("pyruntime.caching")

# Environment variables for a user and a password that are not in the command line; settings come first.
USER_VARIABLE = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE = "TRITONCACHE_REDIS_PASSWORD"
# How long a connection, and an answer, may take unless the settings say so, in milliseconds.
TIMEOUT_MS = 1000

_NUMBERS = {"connect_timeout": TIMEOUT_MS, "socket_timeout": TIMEOUT_MS, "wait_timeout": TIMEOUT_MS}
_TLS = {
    "cert": "ssl_certfile",
    "key": "ssl_keyfile",
    "cacert": "ssl_ca_certs",
    "cacert_dir": "ssl_ca_path",
}
_KEYS = {"host", "port", "user", "password", "db", "pool_size", "tls_enabled", "sni", *_NUMBERS, *_TLS}


class RedisCache(ResponseCache):
    """See the module."""

    def __init__(self, name: str, config: Mapping[str, str]) -> None:
        super().__init__(name)
        self._config = config
        self._client: Any = None  # a redis.Redis from `open` on
        self._failure: type[Exception] = LoadError

    @property
    def failure(self) -> type[Exception]:
        """See ResponseCache."""
        return self._failure

    async def open(self) -> None:
        """See ResponseCache. The Redis server must answer."""
        try:
            import redis
        except ImportError:
            raise LoadError("the response cache 'redis' needs redis-py: pip install 'pyruntime[redis]'") from None
        options = _options(self._config)
        is_tls, server_name = options.pop("ssl"), options.pop("server_name")
        pool = _tls_pool(redis, server_name) if is_tls else redis.BlockingConnectionPool
        self._client = redis.Redis.from_pool(pool(**options))  # `close` closes the pool with it
        self._failure = redis.RedisError
        _LOG.info("Response cache '%s' is at %s:%d", self.name, options["host"], options["port"])
        try:
            await asyncio.to_thread(self._client.ping)
        except redis.RedisError as exc:
            raise LoadError(f"Failed to initialize RedisCache: {exc}") from exc

    def lookup(self, key: str) -> memoryview | None:
        """See ResponseCache. Blocks."""
        entry = self._client.get(key)
        return None if entry is None else memoryview(entry)

    def insert(self, key: str, entry: bytes) -> None:
        """See ResponseCache. Blocks."""
        self._client.set(key, entry, nx=True)

    async def close(self) -> None:
        """See ResponseCache."""
        await super().close()
        await asyncio.to_thread(self._client.close)


def _tls_pool(redis: Any, server_name: str) -> Any:
    """A function that makes a pool; the certificate of the server must have its name, or its host if that is ""."""

    class NamedConnection(redis.SSLConnection):  # type: ignore[misc]
        """Connects itself to the host, and asks there for the server of another name: redis-py has no option for it."""

        host: str

        def _wrap_socket_with_ssl(self, sock: Any) -> Any:
            host, self.host = self.host, server_name
            try:
                return super()._wrap_socket_with_ssl(sock)
            finally:
                self.host = host

    def pool(**options: Any) -> Any:
        connection_class = NamedConnection if server_name else redis.SSLConnection
        return redis.BlockingConnectionPool(connection_class=connection_class, **options)

    return pool


def _options(config: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of redis-py. Raises LoadError."""
    if unknown := sorted(config.keys() - _KEYS):
        raise LoadError(f"the response cache 'redis' has no setting '{unknown[0]}': it has {', '.join(sorted(_KEYS))}")
    if not config.get("host") or not config.get("port"):
        found = ", ".join(sorted(config)) or "none"
        raise LoadError(
            "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and 'port', "
            f"each by an option --cache-config=redis,<key>=<value> of its own. Found: {found}"
        )
    is_tls = config.get("tls_enabled", "").lower() == "true"
    options: dict[str, Any] = {
        "host": config["host"],
        "port": _number(config, "port", 0),
        "db": _number(config, "db", 0),
        "username": config.get("user") or os.environ.get(USER_VARIABLE),
        "password": config.get("password") or os.environ.get(PASSWORD_VARIABLE),
        "max_connections": _number(config, "pool_size", THREADS_MAX),
        "socket_connect_timeout": _number(config, "connect_timeout", TIMEOUT_MS) / 1000,
        "socket_timeout": _number(config, "socket_timeout", TIMEOUT_MS) / 1000,
        "timeout": _number(config, "wait_timeout", TIMEOUT_MS) / 1000,
        "ssl": is_tls,
        "server_name": config.get("sni", ""),
    }
    if is_tls:
        options |= {option: config[key] for key, option in _TLS.items() if key in config}
    return options


def _number(config: Mapping[str, str], key: str, default: int) -> int:
    text = config.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()):
        raise LoadError(f"Failed to initialize RedisCache: '{key}' must be a number above 0, and is '{text}'")
    return int(text)
