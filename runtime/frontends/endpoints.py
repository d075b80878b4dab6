# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every HTTP endpoint that answers at once: a route and a body in, a status and a JSON body out."""

from __future__ import annotations

from typing import assert_never

import orjson

from pyruntime.runtime.core import Core
from pyruntime.runtime.frontends.kserve_response import encode_error
from pyruntime.runtime.frontends.routes import Endpoint, Route
from pyruntime.runtime.frontends.status import decode_index_request, model_metadata, repository_index, server_metadata


def answer(core: Core, route: Route, body: bytes) -> tuple[int, bytes]:
    """The status and body of the response to anything but inference and readiness. Raises InferenceError."""
    match route.endpoint:
        case Endpoint.REFUSED:
            return route.status, encode_error(route.error)
        case Endpoint.SERVER_METADATA:
            return 200, server_metadata(core.settings.server_id, core.version)
        case Endpoint.SERVER_LIVE:
            return 200, b""
        case Endpoint.MODEL_METADATA:
            model = core.resolve(route.model, route.version)
            return 200, model_metadata(model.spec, core.table.ready_versions(route.model))
        case Endpoint.MODEL_CONFIG:
            return 200, core.resolve(route.model, route.version).spec.json
        case Endpoint.MODEL_STATISTICS:
            return 200, orjson.dumps({"model_stats": core.statistics(route.model, route.version)})
        case Endpoint.ALL_STATISTICS:
            return 200, orjson.dumps({"model_stats": core.statistics()})
        case Endpoint.REPOSITORY_INDEX:
            return 200, repository_index(core.index(decode_index_request(body)))
        case Endpoint.NOTHING:
            return 200, b""
        case (
            Endpoint.SERVER_READY
            | Endpoint.MODEL_READY
            | Endpoint.MODEL_INFER
            | Endpoint.MODEL_GENERATE
            | Endpoint.MODEL_GENERATE_STREAM
            | Endpoint.METRICS
        ):
            raise AssertionError("these have exchanges of their own")
        case _ as never:
            assert_never(never)
