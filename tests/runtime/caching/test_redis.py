# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of the cache in a Redis server. e2e/test_response_cache.py has such a server."""

import asyncio
import ssl

import pytest
import trustme

from pyruntime.runtime.caching import redis
from pyruntime.utils.errors import LoadError

ADDRESS = {"host": "h", "port": "1"}
# What a server of Redis answers to a client that connects itself.
ANSWERS = {b"PING": b"+PONG\r\n", b"CLIENT": b"+OK\r\n", b"HELLO": b"%1\r\n+proto\r\n:3\r\n"}


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
        "server_name": "",
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


@pytest.mark.parametrize(("settings", "name"), [({"sni": "cache.example"}, "cache.example"), ({}, "localhost")])
def test_name_of_the_server(tmp_path, settings, name):
    """A server with TLS is asked for by its name, which is `sni` or its host, and must have a certificate for it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "root"))
    asked = []
    closed = asyncio.Event()
    context.sni_callback = lambda sock, asked_for, context: asked.append(asked_for)

    async def answer(reader, writer):
        """Answer the commands of a client that connects itself."""
        while line := await reader.readline():
            writer.write(ANSWERS.get(line.strip().upper(), b""))
        writer.close()
        await writer.wait_closed()
        closed.set()

    async def connect():
        server = await asyncio.start_server(answer, "localhost", 0, ssl=context)
        async with server:
            port = str(server.sockets[0].getsockname()[1])
            tls = {"host": "localhost", "port": port, "tls_enabled": "true", "cacert": str(tmp_path / "root")}
            cache = redis.RedisCache("redis", tls | settings)
            await cache.open()
            await cache.close()
            await closed.wait()

    asyncio.run(connect())
    assert set(asked) == {name}
