# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The shared memory for large outputs of one native instance, which another model reads where they were written.

It is made for the first request of another model. Native code allocates in it: see native/triton/output_region.h.
Outputs that other models do not read are blocks of the process's own memory, where huge pages make them cheaper.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyruntime.runtime.instances.native.instance_spec import NativeExtension
from pyruntime.runtime.regions import SharedRegion, create_region
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.addresses import address, split
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.memory_left import cgroup_files

if TYPE_CHECKING:
    from pyruntime.runtime.native._triton import Buffer

_LOG = logging.getLogger("pyruntime.native")


class NativeOutputs:
    """See the module. `region` is None before the first request of another model, and after `close`."""

    def __init__(self, native: NativeExtension, name: str) -> None:
        """`name` is that of the instance."""
        self._native = native
        self._name = name
        # The region for native code.
        self._allocating: object = None
        self.region: SharedRegion | None = None

    @property
    def used_bytes(self) -> int:
        """The memory that they use, in bytes."""
        return 0 if self.region is None else self.region.used_bytes

    def allocating(self) -> object:
        """The region for a request of another model; None if it cannot be made. Its outputs are copied then."""
        if self.region is None:
            try:
                self.region = create_region(f"outputs of {self._name}")
                first = address(self.region.number, 0)
                self._allocating = self._native.OutputRegion(
                    self.region.fileno(), self.region.limit, first, cgroup_files()
                )
            except (OutOfMemoryError, OSError) as exc:
                _LOG.warning("%s: no shared memory for outputs: %s", self._name, exc)
                self.close()
        return self._allocating

    def share(self, response: InferResponse, buffers: Sequence[Buffer]) -> None:
        """Have a response say which of its outputs lie in the region, and keep them until its release.

        `buffers` have the contents of its outputs, in their order. There must be a region.
        """
        region = self.region
        assert region is not None  # the caller looks
        kept: list[Buffer] = []
        for output, buffer in zip(response.outputs, buffers, strict=True):
            at = buffer.address
            # One in another region is of another instance, which has executed the request before.
            if at and split(at)[0] == region.number:
                output.address = at
                kept.append(buffer)
        if kept:
            response.regions = (region,)
            response.release = kept.clear

    def close(self) -> None:
        """The instance has ended. What others still read stays until they are done."""
        region, self.region, self._allocating = self.region, None, None
        if region is not None:
            region.close()
