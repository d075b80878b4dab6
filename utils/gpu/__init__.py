# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs, behind one narrow interface: NVIDIA's driver, or a stand-in for tests on machines without a GPU.

    driver.py       the interface `Gpu`, the properties of a GPU, and the errors
    inventory.py    the GPUs of this process: finds them, and opens one
    nvml.py         calls NVML, which needs no context and no package of NVIDIA's, and finds GPUs by it
    visible.py      applies CUDA_VISIBLE_DEVICES
    cuda.py         a GPU through NVIDIA's driver
    stand_in.py     a GPU that does not exist: its memory is main memory, and the driver's rules are enforced
    machine.py      the file that describes the GPUs of the stand-in

Servers and models that use no GPU import the interface, and what finds GPUs: not cuda.py, and nothing of NVIDIA's.
"""
