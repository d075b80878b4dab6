# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The brokers of all GPUs of the server. Each is started at the first need, and another one after it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyruntime.runtime.regions import GpuHandle
from pyruntime.utils.gpu.driver import GpuMissingError, GpuProperties

if TYPE_CHECKING:
    from pyruntime.runtime.brokers.link import BrokerLink


def _find() -> Sequence[GpuProperties]:
    from pyruntime.utils.gpu.inventory import find_gpus  # the first registration needs it

    return find_gpus()


class Brokers:
    """See the module. `find` looks for GPUs, which may take seconds. Belongs to the event loop's thread."""

    def __init__(self, find: Callable[[], Sequence[GpuProperties]] = _find) -> None:
        self._find = find
        self._gpus: Sequence[GpuProperties] | None = None
        self._links: dict[int, BrokerLink] = {}

    async def gpus(self) -> Sequence[GpuProperties]:
        """The GPUs that the server may use. Only the first call looks for them."""
        if self._gpus is None:
            self._gpus = await asyncio.to_thread(self._find)
        return self._gpus

    async def of(self, gpu: GpuProperties) -> BrokerLink:
        """The broker of a GPU, when it is ready. Raises GpuError if the GPU cannot be used."""
        link = self._links.get(gpu.ordinal)
        if link is not None:
            link.check()
        if link is None or link.is_lost:
            from pyruntime.runtime.brokers.link import BrokerLink  # the first registration needs it

            try:
                link = self._links[gpu.ordinal] = BrokerLink(gpu)
            except OSError as exc:
                raise GpuMissingError("no process", "start a broker", exc.strerror or str(exc)) from exc
        if not link.ready.done():
            await asyncio.shield(link.ready)  # others wait for it, too
        link.ready.result()
        if link.is_lost:
            raise link.loss("it ended as soon as it was ready")
        return link

    def running(self, ordinal: int) -> BrokerLink | None:
        """The broker of the GPU with this number, None if there is none."""
        link = self._links.get(ordinal)
        return None if link is None or link.is_lost else link

    def close_memory(self, gpu: GpuProperties, memory: GpuHandle) -> asyncio.Future[int] | None:
        """Have the broker close memory: see BrokerLink. None if it does not have it open."""
        link = self.running(gpu.ordinal)
        return None if link is None else link.close_memory(memory)

    async def close(self) -> None:
        """End all brokers."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.end() for link in links.values() if not link.is_lost))
