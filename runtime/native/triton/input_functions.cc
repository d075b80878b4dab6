// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// TRITONBACKEND_Input*: an input is one buffer, in the memory of the host, or none where it is empty.

#include "arguments.h"
#include "request.h"

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input* input, const char** name, TRITONSERVER_DataType* datatype, const int64_t** shape,
    uint32_t* dims_count, uint64_t* byte_size, uint32_t* buffer_count) {
  PYRUNTIME_REQUIRE(input);
  if (name != nullptr) *name = input->name.c_str();
  if (datatype != nullptr) *datatype = input->datatype;
  if (shape != nullptr) *shape = input->shape.data();
  if (dims_count != nullptr) *dims_count = static_cast<uint32_t>(input->shape.size());
  if (byte_size != nullptr) *byte_size = input->attributes.byte_size;
  if (buffer_count != nullptr) *buffer_count = input->attributes.byte_size == 0 ? 0 : 1;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputPropertiesForHostPolicy(
    TRITONBACKEND_Input* input, const char* /*host_policy_name*/, const char** name, TRITONSERVER_DataType* datatype,
    const int64_t** shape, uint32_t* dims_count, uint64_t* byte_size, uint32_t* buffer_count) {
  PYRUNTIME_REQUIRE(input);
  return TRITONBACKEND_InputProperties(input, name, datatype, shape, dims_count, byte_size, buffer_count);
}

// A missing buffer is null and empty, as in Triton, because backends request the first one of an empty input.
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input* input, const uint32_t index, const void** buffer, uint64_t* buffer_byte_size,
    TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  PYRUNTIME_REQUIRE(input);
  PYRUNTIME_REQUIRE(buffer);
  PYRUNTIME_REQUIRE(buffer_byte_size);
  PYRUNTIME_REQUIRE(memory_type);
  PYRUNTIME_REQUIRE(memory_type_id);
  *buffer = index == 0 ? input->data : nullptr;
  *buffer_byte_size = index == 0 ? input->attributes.byte_size : 0;
  *memory_type = input->attributes.memory_type;
  *memory_type_id = input->attributes.memory_type_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InputBufferForHostPolicy(
    TRITONBACKEND_Input* input, const char* /*host_policy_name*/, const uint32_t index, const void** buffer,
    uint64_t* buffer_byte_size, TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id) {
  PYRUNTIME_REQUIRE(input);
  return TRITONBACKEND_InputBuffer(input, index, buffer, buffer_byte_size, memory_type, memory_type_id);
}

TRITONSERVER_Error* TRITONBACKEND_InputBufferAttributes(
    TRITONBACKEND_Input* input, const uint32_t index, const void** buffer,
    TRITONSERVER_BufferAttributes** buffer_attributes) {
  PYRUNTIME_REQUIRE(input);
  PYRUNTIME_REQUIRE(buffer);
  PYRUNTIME_REQUIRE(buffer_attributes);
  *buffer = index == 0 ? input->data : nullptr;
  *buffer_attributes = index == 0 ? &input->attributes : nullptr;
  return nullptr;
}

}  // extern "C"
