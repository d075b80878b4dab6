# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of the cache in a Redis server. e2e/test_response_cache.py has such a server."""

import asyncio

import pytest

from pyruntime.runtime.caching import redis
from pyruntime.utils.errors import LoadError

ADDRESS = {"host": "h", "port": "1"}


def test_defaults():
    """An address is enough."""
    assert redis._options(ADDRESS) == {
        "host": "h",
        "port": 1,
        "db": 0,
        "username": None,
        "password": None,
        "max_connections": 8,
        "socket_connect_timeout": 1.0,
        "socket_timeout": 1.0,
        "timeout": 1.0,
        "ssl": False,
    }


def test_settings(monkeypatch):
    """All settings; those of the environment come second."""
    monkeypatch.setenv("TRITONCACHE_REDIS_USERNAME", "from the environment")
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
    settings = {"user": "u", "db": "2", "pool_size": "3", "wait_timeout": "5", "tls_enabled": "true", "cacert": "ca"}
    options = redis._options(ADDRESS | settings)
    assert (options["username"], options["password"]) == ("u", "secret")
    assert (options["db"], options["max_connections"], options["timeout"]) == (2, 3, 0.005)
    assert (options["ssl"], options["ssl_ca_certs"]) == (True, "ca")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"port": "1"}, "didn't specify address"),
        ({"host": "h,port=1"}, "each by an option --cache-config=redis,<key>=<value> of its own. Found: host$"),
        ({}, "Found: none$"),
        ({"host": "h"}, "didn't specify address"),
        (ADDRESS | {"db": "x"}, "'db' must be a number"),
        (ADDRESS | {"size": "1"}, "the response cache 'redis' has no setting 'size'"),
    ],
)
def test_wrong(config, message):
    """What is missing, or wrong."""
    with pytest.raises(LoadError, match=message):
        asyncio.run(redis.RedisCache("redis", config).open())
