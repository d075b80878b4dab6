# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Serves models written for NVIDIA Triton: `pyruntime serve`, and `pyruntime.testing` for unit tests of models.

`torch_allocator` is for models. In stubs of other interpreters this package has nothing else: see stub/bootstrap.py.
The subpackages lie in folders beside this one: see package_dir in setup.cfg.
"""

from typing import Any

# setup.cfg reads it here. importlib.metadata takes as long to import as the whole HTTP frontend.
__version__ = "0.1.0"


def torch_allocator(byte_size: int) -> Any:
    """A `torch.cuda.memory.CUDAPluggableAllocator` for outputs of this model that shall stay on its GPU without a copy.

    It takes `byte_size` bytes of the GPU until the process ends. What does not fit there torch has from the driver, and
    is copied.

    Raises TritonModelException outside a model, in an instance that is on no GPU, if torch cannot use one, and on a GPU
    beyond the 64 first ones of the process.
    """
    from pyruntime.stub.torch_allocator import torch_allocator

    return torch_allocator(byte_size)
