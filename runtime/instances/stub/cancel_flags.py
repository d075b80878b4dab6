# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The flags by which a stub sees, during execute, that a request is cancelled. (pure)

There are fewer flags than serials: requests whose serials differ by a multiple of FLAGS_BYTES share one. No request may
look cancelled because another one is. So a flag that is shared is not set, and the model does not see the cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyruntime.runtime.execution.job import Job
from pyruntime.utils.regions import FLAGS_BYTES


class CancelFlags:
    """Those of one stub. `raised` are the serials of the requests whose flags are set."""

    def __init__(self, set_flag: Callable[[int, int], None]) -> None:
        """`set_flag` is called with a serial and the value of its flag."""
        self.raised: set[int] = set()
        self._set_flag = set_flag

    def raise_for(self, job: Job, present: Iterable[Job]) -> None:
        """Set the flag of a request, unless another of those that are `present` in the stub shares it."""
        serial = job.serial
        if not any(each is not job and (each.serial - serial) % FLAGS_BYTES == 0 for each in present):
            self.raised.add(serial)
            self._set_flag(serial, 1)

    def lower(self, serial: int) -> None:
        """Clear the flag of a request, even if it shares the flag with a cancelled one."""
        for raised in [each for each in self.raised if (each - serial) % FLAGS_BYTES == 0]:
            self.raised.discard(raised)
            self._set_flag(serial, 0)
