# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchanges of the page's files, of what an open page asks for, and of the OpenAPI document."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import orjson

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.app.watch import watch_document
from pyruntime.runtime.frontends.common.json_document import invalid, parse_document
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.kserve_response import encode_error
from pyruntime.runtime.frontends.http.openapi.document import ServedVersion, openapi_document
from pyruntime.runtime.frontends.http.page.files import page_files
from pyruntime.utils.errors import InferenceError

_INTERNALS_REFUSED = (
    "log lines and stacks are for clients on the server's own machine, or for those that send the header that opens "
    "the API 'logging': see --http-restricted-api"
)


class PageExchange(Exchange):
    """A file of the page."""

    def _act(self) -> None:
        file = page_files()[self.head.route.file]
        self._respond(200, file.contents, file.head_lines)


class _OwnExchange(Exchange):
    """Answers with as much as the client may see: see restrictions.Access."""

    def _sees_internals(self) -> bool:
        """Whether the client may see log lines and stacks, which may contain anything that models handle."""
        access = self.head.access
        return access.opens_log or (access.is_direct and self._connection.is_local)


class WatchExchange(_OwnExchange):
    """What an open page shows now. The body is {"log_after"?: <the number of the last line of the log that it has>}."""

    def _act(self) -> None:
        after = parse_document(self._body).get("log_after", 0) if self._body else 0
        if type(after) is not int:
            raise invalid("'log_after' must be the number of a line")
        document = watch_document(self._state, self.head.access.closed, self._sees_internals(), after)
        self._respond(200, orjson.dumps(document))


class StacksExchange(_OwnExchange):
    """The stacks of a model's stubs. The body is {"model": <name>}."""

    def _act(self) -> None:
        if not self._sees_internals():
            self._respond(403, encode_error(_INTERNALS_REFUSED))
            return
        model = parse_document(self._body).get("model")
        if not isinstance(model, str):
            raise invalid("'model' must be the name of a model")
        self._state.tasks.create_task(self._answer(model), name=f"read the stacks of '{model}'")

    async def _answer(self, model: str) -> None:
        try:
            stacks = await self._state.stacks.read(model)
        except InferenceError as exc:
            self.reject(exc)
        else:
            self._respond(200, orjson.dumps({"stacks": [each._asdict() for each in stacks]}))


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
    origins = settings.http_public_origins
    document = openapi_document(settings.server_id, state.version, versions, restricted, origins)
    _documents[state] = versions, document
    return document
