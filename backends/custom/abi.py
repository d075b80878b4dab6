# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The declarations of include/custom.h for ctypes. (pure)

The layouts are those of LP64, as in the header; a test compares them with a compiler's.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)

NO_GPU_DEVICE = -1
SERVER_PARAMETER_CNT = 2
# CustomMemoryType.
MEMORY_CPU, MEMORY_GPU = 0, 1


class CustomInitializeData(Structure):
    """The properties of an instance, for CustomInitialize."""

    _fields_ = (
        ("instance_name", c_char_p),
        ("serialized_model_config", c_char_p),
        ("serialized_model_config_size", c_size_t),
        ("gpu_device_id", c_int),
        ("server_parameter_cnt", c_size_t),
        ("server_parameters", POINTER(c_char_p)),
    )


class CustomPayload(Structure):
    """One request."""

    _fields_ = (
        ("batch_size", c_uint32),
        ("input_cnt", c_uint32),
        ("input_names", POINTER(c_char_p)),
        ("input_shape_dim_cnts", POINTER(c_size_t)),
        ("input_shape_dims", POINTER(POINTER(c_int64))),
        ("output_cnt", c_uint32),
        ("required_output_names", POINTER(c_char_p)),
        ("input_context", c_void_p),
        ("output_context", c_void_p),
        ("error_code", c_int),
    )


_OF_INPUT = (c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_uint64))
_OF_OUTPUT = (c_void_p, c_char_p, c_size_t, POINTER(c_int64), c_uint64, POINTER(c_void_p))
_OF_MEMORY = (POINTER(c_int), POINTER(c_int64))

# The functions that a library calls, by the version of its interface.
GetNextInput = {1: CFUNCTYPE(c_bool, *_OF_INPUT), 2: CFUNCTYPE(c_bool, *_OF_INPUT, *_OF_MEMORY)}
GetOutput = {1: CFUNCTYPE(c_bool, *_OF_OUTPUT), 2: CFUNCTYPE(c_bool, *_OF_OUTPUT, *_OF_MEMORY)}
EXECUTE = {1: "CustomExecute", 2: "CustomExecuteV2"}

# The functions of a library. They may block; CFUNCTYPE releases the GIL meanwhile.
Version = CFUNCTYPE(c_uint32)
Initialize = CFUNCTYPE(c_int, POINTER(CustomInitializeData), POINTER(c_void_p))
Finalize = CFUNCTYPE(c_int, c_void_p)
ErrorString = CFUNCTYPE(c_char_p, c_void_p, c_int)
Execute = {
    version: CFUNCTYPE(c_int, c_void_p, c_uint32, POINTER(CustomPayload), GetNextInput[version], GetOutput[version])
    for version in EXECUTE
}
