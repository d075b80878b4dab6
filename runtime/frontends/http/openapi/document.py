# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The whole document: OpenAPI 3.1 for one server and the models that it serves. (pure)

It follows from the arguments alone, and takes milliseconds where there are many models: callers should
cache it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.frontends.http.openapi.components import RESPONSES, SCHEMAS, parameters
from pyruntime.runtime.frontends.http.openapi.models import component_name, model_paths, model_schemas
from pyruntime.runtime.frontends.http.openapi.operations import Paths, error
from pyruntime.runtime.frontends.http.openapi.server import server_paths
from pyruntime.runtime.frontends.http.openapi.tensors import Schema

OPENAPI_VERSION = "3.1.0"

_DESCRIPTION = """\
The KServe v2 inference protocol with Triton's extensions, and the models that are served, each with its own schemas.

Members that a request has beyond those described are ignored. Numbers that are not finite are written NaN, Infinity \
and -Infinity in responses, and may be in requests, although that is not JSON."""

_HERE = "Where this document comes from."


class ServedVersion(NamedTuple):
    """One version of one model that serves requests."""

    version: int
    spec: ModelSpec


def openapi_document(
    name: str,
    server_version: str,
    versions: Sequence[ServedVersion],
    restricted: Mapping[str, str],
    origins: Sequence[str] = (),
) -> bytes:
    """The document of the server `name`.

    `restricted` has the header that opens an API, for those that need one; `origins` are the sites of its proxies.
    """
    latest: dict[str, int] = {}
    for version, spec in versions:
        latest[spec.name] = max(version, latest.get(spec.name, 0))
    paths, schemas = server_paths(), dict(SCHEMAS)
    for version, spec in versions:
        schemas |= model_schemas(spec, version)
        paths |= dict(model_paths(spec, version, version == latest[spec.name]))
    _restrict(paths, restricted)
    components: Schema = {
        "schemas": schemas,
        "responses": RESPONSES,
        "parameters": parameters(latest),
    }
    if restricted:
        components["securitySchemes"] = {
            component_name(header): {"type": "apiKey", "in": "header", "name": header}
            for header in sorted(set(restricted.values()))
        }
    document: dict[str, object] = {
        "openapi": OPENAPI_VERSION,
        "info": {"title": name, "version": server_version, "description": _DESCRIPTION},
        "servers": [*({"url": origin} for origin in origins), {"url": "/", "description": _HERE}],
        "security": [],  # operations that are restricted say how they are opened
        "paths": paths,
        "components": components,
    }
    return orjson.dumps(document)


def _restrict(paths: Paths, restricted: Mapping[str, str]) -> None:
    """Say of each operation of an API that is not open to all how it is opened, and what comes otherwise."""
    for operations in paths.values():
        for operation in operations.values():
            header = restricted.get(operation["tags"][0])
            if header is not None:
                operation["security"] = [{component_name(header): []}]
                operation["responses"]["403"] = error(403)
