# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sends spans to a collector of OpenTelemetry, over HTTP."""

from __future__ import annotations

import http.client
import logging
import threading
import time
from base64 import b64encode
from collections.abc import Sequence
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from pyruntime.runtime.settings import without_credentials
from pyruntime.runtime.tracing.buckets import Write
from pyruntime.runtime.tracing.spans import count_spans, encode_spans

_LOG = logging.getLogger("pyruntime.tracing")

# The name of the service where `resource` gives none. It is that of Triton, so that tools made for it find the traces.
SERVICE_NAME = "triton-inference-server"

# The time limit of one request, in seconds.
TIMEOUT_S = 10.0
# The pauses before further attempts, in seconds. If the last one fails, the spans are dropped.
PAUSES_S = (1.0, 2.0, 4.0)
# Statuses for which OTLP allows another attempt.
_TRY_AGAIN = (429, 502, 503, 504)
_TRIES = len(PAUSES_S) + 1


class Collector:
    """See the module."""

    def __init__(self, url: str, resource: Sequence[tuple[str, str]], version: str) -> None:
        """`url` may have a user and a password, and lack its scheme, which is http then; `version` is pyruntime's."""
        self._url, credentials = without_credentials(url)
        self._host = urlsplit(self._url).netloc
        self._headers = {"Content-Type": "application/json", "User-Agent": f"pyruntime/{version}"}
        if credentials:
            self._headers["Authorization"] = f"Basic {b64encode(unquote(credentials).encode()).decode()}"
        self._resource = list(
            {
                "telemetry.sdk.name": "pyruntime",
                "telemetry.sdk.language": "python",
                "telemetry.sdk.version": version,
                "service.name": SERVICE_NAME,
                **dict(resource),
            }.items()
        )
        self._version = version
        self._failed = False

    def size(self, write: Write) -> int:
        """See Sink."""
        return sum(count_spans(trace) for trace in write.traces)

    def write(self, writes: Sequence[Write], closing: threading.Event) -> None:
        """See Sink."""
        traces = [trace for write in writes for trace in write.traces]
        body = encode_spans(traces, self._resource, self._version, time.time_ns() - time.monotonic_ns())
        request = Request(self._url, body, self._headers, method="POST")
        for tried in range(_TRIES):
            problem, may_try_again = _send(request)
            if not problem:
                if self._failed:
                    self._failed = False
                    _LOG.info("the collector of traces at %s takes them again", self._host)
                return
            if not may_try_again or tried == len(PAUSES_S) or closing.wait(PAUSES_S[tried]):
                break
        if not self._failed:  # once, and not for every batch
            self._failed = True
            _LOG.warning("traces are lost, because the collector at %s does not take them: %s", self._host, problem)


def _send(request: Request) -> tuple[str, bool]:
    """The error, "" for none; and whether another attempt may succeed."""
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:
            response.read()
    except HTTPError as exc:
        exc.close()
        return f"it answered with {exc.code}", exc.code in _TRY_AGAIN
    except (OSError, http.client.HTTPException) as exc:
        return str(getattr(exc, "reason", exc)), True
    return "", False
