# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the transports of the event loop have to be told, each in its own way."""

from __future__ import annotations

import asyncio


def report_unsent(transport: asyncio.BaseTransport) -> None:
    """Have a transport call `pause_writing` whenever it has not sent everything, and `resume_writing` when it has."""
    assert hasattr(transport, "set_write_buffer_limits")
    # The one with TLS pauses at its limit, all others above it.
    transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0)
