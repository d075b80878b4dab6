# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the GPUs of the machine for models that are being loaded. No CUDA context is created for that.

Their numbers are those of the first reading for as long as the server runs, because instances are known by them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from pyruntime.runtime.gpus.available import AvailableGpus, capability
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.gpu.driver import GpuProperties

_LOG = logging.getLogger("pyruntime.gpus")


def _find() -> Sequence[GpuProperties]:
    from pyruntime.utils.gpu.inventory import find_gpus  # the first model that is loaded needs it

    return find_gpus()


class MachineGpus:
    """See the module. Thread-safe."""

    def __init__(self, settings: ServerSettings, find: Callable[[], Sequence[GpuProperties]] = _find) -> None:
        self._settings = settings
        self._find = find
        self._lock = threading.Lock()
        self._first: tuple[GpuProperties, ...] | None = None

    def read(self) -> AvailableGpus:
        """The GPUs, with the memory that is free now. Blocks, the first time for up to seconds with a driver."""
        with self._lock:
            if self._first is None:
                self._first = now = tuple(self._find())
                self._log()
            elif self._first:
                found = {gpu.uuid: gpu for gpu in self._find()}
                # One that is lost has no room.
                now = tuple(gpu._replace(free_bytes=_free(found.get(gpu.uuid))) for gpu in self._first)
            else:
                now = ()
        settings = self._settings
        return AvailableGpus(now, settings.min_supported_compute_capability, settings.model_load_gpu_limits)

    def _log(self) -> None:
        for gpu in self._first or ():
            wanted = self._settings.min_supported_compute_capability
            too_old = "" if capability(gpu) >= wanted else f"; not used, because its capability is below {wanted:g}"
            _LOG.info(
                "GPU %d is %s (%s), compute capability %g, %.1f GiB%s",
                gpu.ordinal,
                gpu.name,
                gpu.uuid,
                capability(gpu),
                gpu.total_bytes / (1 << 30),
                too_old,
            )
        if AvailableGpus(self._first or ()).are_seen_one_by_one:
            _LOG.info("a process sees one slice of a GPU at most, so the process of an instance sees its own GPU only")


def _free(gpu: GpuProperties | None) -> int:
    return 0 if gpu is None else gpu.free_bytes
