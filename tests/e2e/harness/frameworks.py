# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How models of tests compute on a GPU by each framework: the beginnings of their code.

Each defines `make(array)`, which copies numpy's array to the GPU; `take(tensor)`, an array over a tensor on the GPU;
`times(array, factor)`, a kernel; and `back(array)`, numpy's array. All but the stand-in's need a GPU.
"""

from pathlib import Path

STAND_IN_ARRAY = Path(__file__).with_name("stand_in_array.py").read_text()
TORCH = """
import torch
make, take = lambda array: torch.from_numpy(array).cuda(), torch.from_dlpack
times, back = lambda array, factor: array * factor, lambda array: array.cpu().numpy()
"""
CUPY = """
import cupy
make, take = cupy.asarray, cupy.from_dlpack
times, back = lambda array, factor: array * factor, cupy.asnumpy
"""
JAX = """
import os
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax
jax.config.update("jax_enable_x64", True)
make, take = jax.numpy.asarray, jax.dlpack.from_dlpack
times, back = lambda array, factor: array * factor, np.array
"""
# Numba's arrays have its own interface and no DLPack.
NUMBA = """
import numba.cuda
make, take = numba.cuda.to_device, numba.cuda.as_cuda_array

@numba.cuda.jit
def _times(source, target, factor):
    at = numba.cuda.grid(1)
    if at < source.size:
        target[at] = source[at] * factor

def times(array, factor):
    target = numba.cuda.device_array(array.shape, array.dtype)
    _times[(array.size + 255) // 256, 256](array, target, factor)
    return target

def back(array):
    return array.copy_to_host()
"""
# By the names of their packages.
FRAMEWORKS = {"torch": TORCH, "cupy": CUPY, "jax": JAX, "numba": NUMBA}
