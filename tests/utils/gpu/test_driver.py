# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The errors of GPUs."""

import pytest

from pyruntime.utils.gpu.driver import (
    GpuError,
    GpuHandleError,
    GpuLostError,
    GpuMemoryError,
    GpuMissingError,
    gpu_error,
)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY", GpuMemoryError),
        ("CUDA_ERROR_INVALID_HANDLE", GpuHandleError),
        ("CUDA_ERROR_NO_DEVICE", GpuMissingError),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", GpuLostError),
        ("CUDA_ERROR_UNKNOWN", GpuLostError),
        ("CUDA_ERROR_OF_TOMORROW", GpuError),
    ],
)
def test_kinds(reason, kind):
    """An error has the kind of the driver's result, and says what was called."""
    error = gpu_error(reason, "open", "invalid resource handle")
    assert type(error) is kind
    assert (error.reason, str(error)) == (reason, "open: invalid resource handle")
    assert str(gpu_error(reason, "open")) == f"open: {reason}"
