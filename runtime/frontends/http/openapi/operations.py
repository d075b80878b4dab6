# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The pieces that operations of the document are made of: references, bodies, responses. (pure)

An operation's only tag is the API that it belongs to, in Triton's names of what can be restricted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from pyruntime.runtime.frontends.http.openapi.tensors import Schema

JSON = "application/json"
BINARY = "application/octet-stream"
EVENTS = "text/event-stream"

# The schema of a body that is bytes. OpenAPI 3.1 needs none, but generators of clients go by it.
BYTES: Schema = {"type": "string", "format": "binary"}

# The components that answer for a status, and what each is about.
ERRORS = {
    400: ("BadRequest", "Something is wrong with the request, or the model says so."),
    403: ("Restricted", "The API is not open to everybody, and the request lacks the header that opens it."),
    404: ("NotFound", "There is no such model, version or region."),
    500: ("Failed", "The model failed, or the server."),
    501: ("Unsupported", "The server does not do this, or not as it was started."),
    503: ("Unavailable", "Not now: the model is not ready, its queue is full, or the server exits."),
    504: ("DeadlineExceeded", "The execution took longer than the model's `EXECUTION_TIMEOUT_MS`."),
}


# The schema of a body, by media type.
Content = dict[str, Schema]


class RequestBody(TypedDict):
    """The body of the requests of an operation."""

    required: bool
    content: Content


def ref(name: str) -> Schema:
    """A schema of the document, by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def parameter(name: str) -> Schema:
    """A parameter of the document, by its name."""
    return {"$ref": f"#/components/parameters/{name}"}


def error(status: int) -> Schema:
    """The response of a status that is an error."""
    return {"$ref": f"#/components/responses/{ERRORS[status][0]}"}


def content(schema: Schema, media_type: str = JSON) -> Content:
    """The content of a body, with one media type."""
    return {media_type: {"schema": schema}}


def answer(description: str, content: Content | None = None) -> Schema:
    """A response; one without content has an empty body."""
    return {"description": description, **({"content": content} if content else {})}


def body(content: Content, required: bool = True) -> RequestBody:
    """The body that a request must, or may, have."""
    return {"required": required, "content": content}


class Operation(TypedDict, total=False):
    """The operation of one method on a path."""

    tags: list[str]
    operationId: str
    summary: str
    parameters: list[Schema]
    requestBody: RequestBody
    responses: dict[str, Schema]
    security: list[dict[str, list[str]]]


# The operations of each path, by method.
Paths = dict[str, dict[str, Operation]]


def operation(
    api: str,
    name: str,
    summary: str,
    success: Schema,
    errors: Sequence[int] = (),
    *,
    parameters: Sequence[Schema] = (),
    request: RequestBody | None = None,
) -> Operation:
    """One operation, which is unique by its name; `success` is the response of status 200."""
    made: Operation = {"tags": [api], "operationId": name, "summary": summary}
    if parameters:
        made["parameters"] = list(parameters)
    if request is not None:
        made["requestBody"] = request
    made["responses"] = {"200": success} | {str(status): error(status) for status in errors}
    return made
