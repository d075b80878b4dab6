# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads `--model-load-gpu-limit` and `--cuda-memory-pool-byte-size`. (pure)"""

from __future__ import annotations

from collections.abc import Iterable

from pyruntime.runtime.settings import SettingsError


def read_gpu_limits(texts: Iterable[str]) -> dict[int, float]:
    """`["0:0.5"]` -> `{0: 0.5}`; of a GPU that is given twice, the last one counts. Raises SettingsError."""
    limits: dict[int, float] = {}
    for text in texts:
        device, colon, fraction = text.partition(":")
        if not colon:
            raise SettingsError(f"--model-load-gpu-limit needs <device>:<fraction>, not {text!r}")
        if not _is_number(device):
            raise SettingsError(f"--model-load-gpu-limit expects device ID >= 0, got {device}")
        try:
            limit = float(fraction)
        except ValueError:
            raise SettingsError(f"--model-load-gpu-limit needs a fraction, not {fraction!r}") from None
        if not 0.0 <= limit <= 1.0:
            raise SettingsError(
                f"--model-load-gpu-limit expects limit fraction to be in range [0.0, 1.0], got {limit:f}"
            )
        limits[int(device)] = limit
    return limits


def read_pool_sizes(texts: Iterable[str]) -> dict[int, int]:
    """`["0:1024"]` -> `{0: 1024}`, bytes; of a GPU that is given twice, the last one counts. Raises SettingsError."""
    sizes: dict[int, int] = {}
    for text in texts:
        device, _, size = text.partition(":")
        if not (_is_number(device) and _is_number(size)):
            raise SettingsError(f"--cuda-memory-pool-byte-size needs <device>:<bytes>, not {text!r}")
        sizes[int(device)] = int(size)
    return sizes


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
