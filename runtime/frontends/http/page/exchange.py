# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchanges of the page's files and of the OpenAPI document."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.openapi.document import ServedVersion, openapi_document
from pyruntime.runtime.frontends.http.page.files import page_files


class PageExchange(Exchange):
    """A file of the page."""

    def _act(self) -> None:
        file = page_files()[self.head.route.file]
        self._respond(200, file.contents, file.head_lines)


class OpenApiExchange(Exchange):
    """The document about this server."""

    def _act(self) -> None:
        self._respond(200, _document(self._state))


# The last document of each server, and which versions it is about: a reloaded one has another configuration.
_documents: WeakKeyDictionary[ServerState, tuple[list[ServedVersion], bytes]] = WeakKeyDictionary()


def _document(state: ServerState) -> bytes:
    versions = [ServedVersion(model.version, model.spec) for model in state.models()]
    known = _documents.get(state)
    if known is not None and len(known[0]) == len(versions):
        same = zip(known[0], versions, strict=True)
        if all(old.version == new.version and old.spec is new.spec for old, new in same):
            return known[1]
    settings = state.settings
    restricted = {api: restriction.header for api, restriction in settings.http_restricted_apis.items()}
    document = openapi_document(settings.server_id, state.version, versions, restricted)
    _documents[state] = versions, document
    return document
