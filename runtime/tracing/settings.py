# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What `--trace-config` sets. (pure)"""

from __future__ import annotations

from dataclasses import dataclass

TRITON = "triton"
OPENTELEMETRY = "opentelemetry"
MODES = (TRITON, OPENTELEMETRY)

# In the order in which Triton lists them. None of them is "OFF".
TIMESTAMPS = "TIMESTAMPS"
TENSORS = "TENSORS"
LEVELS = (TIMESTAMPS, TENSORS)

# Where a collector of OpenTelemetry listens if nobody says otherwise.
URL = "http://localhost:4318/v1/traces"
# The name of the service where `resource` gives none. It is Triton's, so that what was made for it finds the traces.
SERVICE_NAME = "triton-inference-server"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """How requests are traced. `levels` are some of LEVELS; every `rate`-th request is traced, and `count` in all, -1
    for any number.

    In mode TRITON traces are written to `file`; with a `log_frequency`, so many of them to a file of their own. In mode
    OPENTELEMETRY they are sent to `url`, as those of a `resource` with these attributes: up to `export_batch_max` spans
    at a time, no later than `schedule_delay_ms` milliseconds after they have ended, and of what cannot be sent in time
    `queue_max` spans are kept.
    """

    mode: str = TRITON
    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    url: str = URL
    resource: tuple[tuple[str, str], ...] = ()
    schedule_delay_ms: int = 5000
    export_batch_max: int = 512
    queue_max: int = 2048


def without_credentials(url: str) -> tuple[str, str]:
    """A URL, with http for a scheme where it has none, without the user and password in it; and these, or ""."""
    from urllib.parse import urlsplit  # only a server that sends traces pays for it

    parts = urlsplit(url if "://" in url else f"http://{url}")
    credentials, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=host).geturl(), credentials
