# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of the metrics page, which is the one response that is plain text."""

from __future__ import annotations

from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.response_head import METRICS_TEXT


class MetricsExchange(Exchange):
    """See the module."""

    def _act(self) -> None:
        self._respond(200, self._state.metrics.render(), METRICS_TEXT)
