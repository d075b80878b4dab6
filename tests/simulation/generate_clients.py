# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that ask for text over HTTP, by the generate extension: for one response, or for a stream of events."""

import json

from .http_clients import HttpClient
from .tensors import HOP, request_of

STREAM = "generate_stream"


class GenerateClient(HttpClient):
    """See the module. It does all else that clients over HTTP do."""

    kinds = (STREAM, "generate", "json", "health", "nonsense", "garbage", "stalls")
    weights = (12, 3, 2, 1, 1, 1, 1)
    # The events of a stream wait in the server only for a client that does not read.
    paces = (3, 3, 2)
    rooms = (1 << 20, 300, 64, 64)

    def _request(self, due):
        if due.kind not in (STREAM, "generate"):
            return super()._request(due)
        body = json.dumps({"id": str(due.number), "IN": [due.number] * 2}).encode()
        return self._post(f"/v2/models/{self._model.name}/{due.kind}", body)

    def _check(self, due, headers, body):
        match due.kind:
            case "generate":
                self._check_document(due.number, json.loads(body))
            case "generate_stream":
                self._check_events(due.number, [json.loads(each[6:]) for each in body.split(b"\n\n") if each])
            case _:
                super()._check(due, headers, body)

    def _check_events(self, number, documents):
        """A stream has the responses of the model, all of them unless it failed or nobody waited for its end."""
        responses = [document for document in documents if "error" not in document]
        for document in responses:
            self._check_document(number, document)
        if not self._model.is_decoupled and len(documents) != 1:
            self._world.ledger.violated(f"request {number} of {self._model.name} gets {len(documents)} events")
        if len(responses) == len(documents) and not self._half_closes:
            self._world.check_length(self._model, number, len(responses))

    def _check_document(self, number, document):
        values = {value for name in self._model.spec.outputs for value in document[name]}
        if document.get("id") != str(number) or any(value < HOP or request_of(value) != number for value in values):
            self._world.ledger.violated(
                f"HTTP request {number} generates what is not for it: {document.get('id')}, {values}"
            )
