# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Connections beyond the limit that ask about the server's health over gRPC. (pure)

Each may ask once: with its first call it is told to open no more. See http/health_reserve.py.
"""

from __future__ import annotations

from collections.abc import Callable

from pyruntime.runtime.frontends.common.health_places import TOO_MANY
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.status import Status, trailers_only

HEALTH = frozenset(
    (
        "/grpc.health.v1.Health/Check",
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
    )
)


def only_health(read_head: Callable[[bytes], CallHead], asks: Callable[[], None]) -> Callable[[bytes], CallHead]:
    """`read_head` for one of these connections: it refuses other calls. `asks` is called for each call."""

    def read_health(packed: bytes) -> CallHead:
        asks()
        head = read_head(packed)
        if head.refusal or head.path in HEALTH:
            return head
        return head._replace(refusal=trailers_only(Status.UNAVAILABLE, TOO_MANY))

    return read_health
