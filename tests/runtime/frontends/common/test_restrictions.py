# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.cli.restrictions import APIS
from pyruntime.runtime.frontends.common.restrictions import (
    API_OF,
    OWN_ACCESS,
    Access,
    access_of,
    is_loopback,
    restrict,
)
from pyruntime.runtime.frontends.http.request_head import HeadReader
from pyruntime.runtime.frontends.http.routes import Endpoint, Route
from pyruntime.runtime.settings import Restriction

LIVE = Route(Endpoint.SERVER_LIVE)
REFUSED = Route(Endpoint.REFUSED, status=403, error="This API is restricted, expecting header 'key'")
# Open to all: what says nothing of models, and what belongs to other ports.
OPEN = {Endpoint.REFUSED, Endpoint.NOTHING, Endpoint.METRICS, Endpoint.PAGE}


def test_every_endpoint_has_its_api():
    """Every endpoint that can be restricted has an API, and each API has endpoints."""
    assert set(API_OF) == set(Endpoint) - OPEN - set(OWN_ACCESS)
    assert set(API_OF.values()) == set(APIS)


@pytest.mark.parametrize(
    ("headers", "route"),
    [
        ({b"key": b"secret"}, LIVE),
        ({b"key": b"secrets"}, REFUSED),
        ({b"key": b"Secret"}, REFUSED),
        ({b"key": b""}, REFUSED),
        ({b"other": b"secret"}, REFUSED),
        ({}, REFUSED),
    ],
)
def test_the_header_lets_in(headers, route):
    """The value must be identical; other APIs do not need the header."""
    assert restrict(LIVE, headers, {"health": Restriction("key", "secret")}) == route
    assert restrict(LIVE, headers, {"metadata": Restriction("key", "secret")}) is LIVE


def test_what_is_not_there_is_not_restricted():
    """A wrong path is a wrong path."""
    nowhere = Route(Endpoint.REFUSED, status=404, error="Not Found")
    assert restrict(nowhere, {}, dict.fromkeys(APIS, Restriction("key", "secret"))) is nowhere


def test_heads():
    """A head is refused or accepted by its contents, the first time and each later time."""
    reader = HeadReader({"health": Restriction("key", "secret"), "trace": Restriction("key", "é")})
    for _ in range(2):
        assert reader.read(b"GET /v2/health/live HTTP/1.1\r\n\r\n").route == REFUSED
        assert reader.read(b"GET /v2/health/live HTTP/1.1\r\nKEY: secret\r\n\r\n").route == LIVE
        for values in (("secret", "secret"), ("wrong", "secret"), ("secret", "wrong")):  # as over gRPC, a list
            two = "".join(f"Key: {value}\r\n" for value in values).encode()
            assert reader.read(b"GET /v2/health/live HTTP/1.1\r\n%b\r\n" % two).route == REFUSED
        assert reader.read(b"GET /v2 HTTP/1.1\r\n\r\n").route.endpoint is Endpoint.SERVER_METADATA
        trace = reader.read("GET /v2/trace/setting HTTP/1.1\r\nKey: é\r\n\r\n".encode())
        assert trace.route.endpoint is Endpoint.TRACE_SETTING


LOGGING = {"logging": Restriction("key", "secret"), "statistics": Restriction("other", "secret")}


@pytest.mark.parametrize(
    ("headers", "access"),
    [
        ({}, Access({"logging": "key", "statistics": "other"})),
        ({b"key": b"secret"}, Access({"statistics": "other"}, opens_log=True)),
        ({b"key": b"secrets"}, Access({"logging": "key", "statistics": "other"})),
        ({b"other": b"secret", b"host": b"localhost"}, Access({"logging": "key"})),
    ],
)
def test_access_by_headers(headers, access):
    """Each restricted API is closed without its header; where `logging` is restricted only its header opens the log."""
    assert access_of(headers, LOGGING) == access


@pytest.mark.parametrize(
    ("headers", "is_direct"),
    [
        ({b"host": b"localhost:8000"}, True),
        ({b"host": b"LOCALHOST"}, True),
        ({b"host": b"127.0.0.1:8000", b"origin": b"http://127.0.0.1:8000"}, True),
        ({b"host": b"[::1]:8000", b"origin": b"http://[::1]:8000"}, True),
        ({b"host": b"[::1]:8000", b"origin": b"https://[::1]:8000"}, False),
        ({b"host": b"localhost:8000", b"origin": b"http://localhost:3000"}, False),
        ({b"host": b"localhost:8000", b"referer": b"http://localhost:3000/"}, False),
        ({}, False),
        ({b"host": b"10.0.0.1:8000"}, False),
        ({b"host": b"localhost.example.org"}, False),
        ({b"host": b"127.0.0.1.example.org"}, False),
        ({b"host": b"localhost:8000", b"origin": b"http://example.org"}, False),
        ({b"host": b"localhost:8000", b"origin": b"null"}, False),
        ({b"host": b"localhost:8000", b"origin": b"null", b"sec-fetch-site": b"same-origin"}, True),
        ({b"host": b"localhost:8000", b"origin": b"http://localhost:9", b"sec-fetch-site": b"same-site"}, False),
        ({b"host": b"localhost:8000", b"sec-fetch-site": b"cross-site"}, False),
        *(
            ({b"host": b"localhost:8000", name: b"1.2.3.4"}, False)
            for name in (b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip")
        ),
    ],
)
def test_direct_clients(headers, is_direct):
    """The client calls the server by a name of its own machine, and neither another site nor a proxy is between."""
    assert access_of(headers, {}) == Access({}, is_direct=is_direct)


@pytest.mark.parametrize(
    ("peer", "loopback"),
    [
        (("127.0.0.1", 5), True),
        (("127.8.9.1", 5), True),
        (("::1", 5, 0, 0), True),
        (("::ffff:127.0.0.1", 5, 0, 0), True),
        (("::ffff:10.0.0.1", 5, 0, 0), False),
        (("fe80::1%eth0", 5, 0, 2), False),
        (("10.0.0.1", 5), False),
        (("0.0.0.0", 5), False),
        ("", False),
        (None, False),
    ],
)
def test_addresses(peer, loopback):
    """Only the machine itself has these addresses; a client of a UNIX socket has none."""
    assert is_loopback(peer) is loopback
