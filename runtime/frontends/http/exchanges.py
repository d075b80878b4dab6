# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the exchange of a request."""

from __future__ import annotations

from pyruntime.runtime.frontends.http.endpoint_exchange import (
    EndpointExchange,
    LoadExchange,
    MetricsExchange,
    RefusedExchange,
    RegisterCudaExchange,
    StatisticsExchange,
    UnloadExchange,
    UnregisterCudaExchange,
    UnregisterSystemExchange,
)
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.generate_exchange import GenerateExchange, GenerateStreamExchange
from pyruntime.runtime.frontends.http.infer_exchange import InferExchange
from pyruntime.runtime.frontends.http.page.exchange import OpenApiExchange, PageExchange, StacksExchange, WatchExchange
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.routes import Endpoint, Route

_EXCHANGES: dict[Endpoint, type[Exchange]] = {
    Endpoint.MODEL_INFER: InferExchange,
    Endpoint.MODEL_GENERATE: GenerateExchange,
    Endpoint.MODEL_GENERATE_STREAM: GenerateStreamExchange,
    Endpoint.MODEL_LOAD: LoadExchange,
    Endpoint.MODEL_UNLOAD: UnloadExchange,
    Endpoint.CUDA_MEMORY_REGISTER: RegisterCudaExchange,
    Endpoint.CUDA_MEMORY_UNREGISTER: UnregisterCudaExchange,
    Endpoint.SYSTEM_MEMORY_UNREGISTER: UnregisterSystemExchange,
    Endpoint.METRICS: MetricsExchange,
    Endpoint.MODEL_STATISTICS: StatisticsExchange,
    Endpoint.ALL_STATISTICS: StatisticsExchange,
    Endpoint.OPENAPI: OpenApiExchange,
    Endpoint.PAGE: PageExchange,
    Endpoint.PAGE_WATCH: WatchExchange,
    Endpoint.PAGE_STACKS: StacksExchange,
    Endpoint.REFUSED: RefusedExchange,
}

# The head of an exchange that reports an unreadable request.
UNREADABLE = Head(Route(Endpoint.REFUSED), 0, False, None, "", False, False, False)


def exchange_of(endpoint: Endpoint) -> type[Exchange]:
    """The exchange of a request to an endpoint."""
    return _EXCHANGES.get(endpoint, EndpointExchange)
