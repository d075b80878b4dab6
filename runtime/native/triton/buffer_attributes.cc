// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include <memory>

#include "arguments.h"
#include "error.h"
#include "values.h"

using Attributes = TRITONSERVER_BufferAttributes;

TRITONSERVER_Error* TRITONSERVER_BufferAttributesNew(Attributes** buffer_attributes) {
  PYRUNTIME_REQUIRE(buffer_attributes);
  PYRUNTIME_GUARD({
    *buffer_attributes = std::make_unique<Attributes>().release();
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesDelete(Attributes* buffer_attributes) {
  std::unique_ptr<Attributes>{buffer_attributes};
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryTypeId(
    Attributes* buffer_attributes, int64_t memory_type_id) {
  PYRUNTIME_REQUIRE(buffer_attributes);
  buffer_attributes->memory_type_id = memory_type_id;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryType(
    Attributes* buffer_attributes, TRITONSERVER_MemoryType memory_type) {
  PYRUNTIME_REQUIRE(buffer_attributes);
  buffer_attributes->memory_type = memory_type;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetCudaIpcHandle(
    Attributes* buffer_attributes, void* cuda_ipc_handle) {
  PYRUNTIME_REQUIRE(buffer_attributes);
  buffer_attributes->cuda_ipc_handle = cuda_ipc_handle;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetByteSize(Attributes* buffer_attributes, size_t byte_size) {
  PYRUNTIME_REQUIRE(buffer_attributes);
  buffer_attributes->byte_size = byte_size;
  return nullptr;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesMemoryTypeId(Attributes* buffer_attributes, int64_t* memory_type_id) {
  PYRUNTIME_GET(buffer_attributes, memory_type_id, buffer_attributes->memory_type_id);
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesMemoryType(
    Attributes* buffer_attributes, TRITONSERVER_MemoryType* memory_type) {
  PYRUNTIME_GET(buffer_attributes, memory_type, buffer_attributes->memory_type);
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesCudaIpcHandle(Attributes* buffer_attributes, void** cuda_ipc_handle) {
  PYRUNTIME_GET(buffer_attributes, cuda_ipc_handle, buffer_attributes->cuda_ipc_handle);
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesByteSize(Attributes* buffer_attributes, size_t* byte_size) {
  PYRUNTIME_GET(buffer_attributes, byte_size, buffer_attributes->byte_size);
}
