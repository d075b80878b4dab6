# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the device of an instance of a backend that uses torch."""

from __future__ import annotations

from typing import Any

from pyruntime.utils.errors import ConfigError


def torch_device(torch: Any, model: str, kind: str, device_id: str) -> Any:
    """The device of an instance, the current one of this thread; None for KIND_MODEL, whose model decides.

    Raises ConfigError.
    """
    if kind == "MODEL":
        return None
    if kind != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"model '{model}' has an instance of kind KIND_GPU, and torch {torch.__version__} finds no GPU: "
            "install a package of torch for CUDA, or use KIND_CPU"
        )
    device = torch.device("cuda", int(device_id))
    torch.cuda.set_device(device)  # models make tensors on "cuda", too
    return device
