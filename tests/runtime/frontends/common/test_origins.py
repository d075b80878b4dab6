# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.frontends.common.origins import CONTROLS, Origins, refuse_foreign
from pyruntime.runtime.frontends.http.routes import Endpoint, Route

HOST = {b"host": b"models.example:8000"}


@pytest.mark.parametrize("endpoint", sorted(CONTROLS, key=str))
@pytest.mark.parametrize(
    ("headers", "is_foreign"),
    [
        ({}, False),
        ({b"origin": b"http://models.example:8000"}, False),
        ({b"origin": b"http://MODELS.example:8000"}, False),
        ({b"origin": b"https://models.example:8000"}, True),
        ({b"origin": b"http://models.example"}, True),
        ({b"origin": b"http://models.example:8001"}, True),
        ({b"origin": b"http://evil.example"}, True),
        ({b"origin": b"http://evil.example/models.example:8000"}, True),
        ({b"origin": b"null"}, True),
        ({b"origin": b""}, True),
        ({b"origin": b"http://models.example:8000, http://evil.example"}, True),
        ({b"origin": b"http://proxy.example", b"sec-fetch-site": b"same-origin"}, False),
        ({b"sec-fetch-site": b"none"}, False),
        ({b"origin": b"http://models.example:8000", b"sec-fetch-site": b"cross-site"}, True),
        ({b"sec-fetch-site": b"same-site"}, True),
        ({b"referer": b"http://models.example:8000/docs"}, False),
        ({b"referer": b"http://models.example:8000"}, False),
        ({b"referer": b"http://models.example:8000.evil.example/"}, True),
        ({b"referer": b"http://evil.example/http://models.example:8000/"}, True),
        ({b"referer": b"models.example:8000"}, True),
        ({b"referer": b""}, True),
        ({b"origin": b"http://models.example:8000", b"referer": b"http://evil.example/"}, False),
    ],
)
def test_pages_of_other_sites(endpoint, headers, is_foreign):
    """They must not change the server; clients that are no browsers send no such header."""
    route = Route(endpoint)
    found = refuse_foreign(route, HOST | headers)
    assert (found is not route) is is_foreign
    if is_foreign:
        assert found.status == 403
        assert "web page of another site" in found.error


def test_the_page_behind_a_proxy():
    """Its site is another than that of `Host` if the proxy sets that; the operator names it; no other one passes."""
    origins = Origins(public=frozenset({b"https://models.example"}))
    route = Route(Endpoint.MODEL_LOAD)
    behind = {b"host": b"127.0.0.1:8000"}
    for origin in (b"https://models.example", b"https://MODELS.example", b"http://127.0.0.1:8000"):
        assert refuse_foreign(route, behind | {b"origin": origin}, origins) is route
    for origin in (b"http://models.example", b"https://models.example:8443", b"https://evil.example", b"null"):
        refusal = refuse_foreign(route, behind | {b"origin": origin}, origins)
        assert refusal.status == 403
        assert "--http-public-origin" in refusal.error
    assert origins.has_called(behind)
    assert not origins.has_called(behind | {b"origin": b"https://models.example"})


def test_the_page_over_tls():
    """At a port with TLS the server's own pages have `https`."""
    origins = Origins(b"https")
    assert origins.foreign_header(HOST | {b"origin": b"https://models.example:8000"}) == ""
    assert origins.foreign_header(HOST | {b"origin": b"http://models.example:8000"}) == "Origin"
    assert origins.foreign_header(HOST | {b"referer": b"http://models.example:8000/"}) == "Referer"
    assert origins.foreign_header(HOST | {b"sec-fetch-site": b"cross-site"}) == "Sec-Fetch-Site"


def test_endpoints_open_to_pages():
    """Pages of other sites may ask for what changes nothing. No other endpoint changes anything."""
    foreign = {b"host": b"a", b"origin": b"http://b"}
    for endpoint in set(Endpoint) - CONTROLS:
        assert refuse_foreign(Route(endpoint), foreign) == Route(endpoint)
        assert not endpoint.name.startswith("UPDATE_")
        assert not endpoint.name.endswith(("_LOAD", "_UNLOAD", "REGISTER"))
