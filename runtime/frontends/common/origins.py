# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Refuses requests that a web page of another site has a browser send to change the server. (pure)

Browsers set `Sec-Fetch-Site`, which no page can, but only for sites with TLS and for the machine itself. With POST they
set `Origin`, the old ones and extensions for privacy `Referer` alone. Other clients set none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyruntime.runtime.frontends.http.routes import Endpoint, Route

# Endpoints that change the server, or stop a model to look at it. Browsers send simple POST requests of any web page.
CONTROLS = frozenset(
    {
        Endpoint.MODEL_LOAD,
        Endpoint.MODEL_UNLOAD,
        Endpoint.UPDATE_TRACE_SETTING,
        Endpoint.UPDATE_LOG_SETTINGS,
        Endpoint.SYSTEM_MEMORY_REGISTER,
        Endpoint.SYSTEM_MEMORY_UNREGISTER,
        Endpoint.CUDA_MEMORY_REGISTER,
        Endpoint.CUDA_MEMORY_UNREGISTER,
        Endpoint.PAGE_STACKS,
    }
)

_FOREIGN = (
    "a web page of another site must not change this server: its `{}` does not match `Host`; where a proxy shows the "
    "server's own page, see --http-public-origin"
)


class Origins(NamedTuple):
    """The origins of the server's own page: that of `Host`, by the `scheme` of the port, and the `public` ones.

    The public ones are those of a proxy, for browsers, in lower case.
    """

    scheme: bytes = b"http"
    public: frozenset[bytes] = frozenset()

    def foreign_header(self, headers: Mapping[bytes, bytes]) -> str:
        """The header that says that a page of another site sends the request, "" for none.

        Names of `headers` are in lower case.
        """
        site = headers.get(b"sec-fetch-site")
        if site is not None:  # it is right behind proxies that change `Host`
            return "" if site in (b"same-origin", b"none") else "Sec-Fetch-Site"
        if self.has_called(headers) or _caller(headers) in self.public:
            return ""
        return "Origin" if b"origin" in headers else "Referer"

    def has_called(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a page of the site that `Host` names sends the request, or no page at all."""
        caller = _caller(headers)
        return caller is None or caller == b"%b://%b" % (self.scheme, headers.get(b"host", b"").lower())


HTTP_ORIGINS = Origins()


def _caller(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The origin of the page that sends a request, as far as the browser says; None for no page."""
    origin = headers.get(b"origin")
    if origin is None and (page := headers.get(b"referer")) is not None:
        origin = b"/".join(page.split(b"/", 3)[:3])
    return None if origin is None else origin.lower()


def refuse_foreign(route: Route, headers: Mapping[bytes, bytes], origins: Origins = HTTP_ORIGINS) -> Route:
    """Return `route`, or a refusal if it is one of CONTROLS and a web page of another site sends the request.

    Names of `headers` are in lower case.
    """
    if route.endpoint not in CONTROLS:
        return route
    header = origins.foreign_header(headers)
    return Route(Endpoint.REFUSED, status=403, error=_FOREIGN.format(header)) if header else route
