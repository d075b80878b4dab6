// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "memory_manager.h"

#include <cstdlib>
#include <string>

#include "arguments.h"
#include "buffer.h"
#include "triton/core/tritonbackend.h"

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_MemoryManagerAllocate(
    TRITONBACKEND_MemoryManager* manager, void** buffer, const TRITONSERVER_MemoryType memory_type,
    const int64_t /*memory_type_id*/, const uint64_t byte_size) {
  PYRUNTIME_REQUIRE(manager);
  PYRUNTIME_REQUIRE(buffer);
  PYRUNTIME_GUARD({
    *buffer = nullptr;
    if (memory_type != TRITONSERVER_MEMORY_CPU) {
      // With this code backends try another kind of memory.
      return pyruntime::NewError(
          TRITONSERVER_ERROR_UNAVAILABLE,
          std::string(TRITONSERVER_MemoryTypeString(memory_type)) + " memory allocation is not supported");
    }
    *buffer = pyruntime::AllocateAligned(byte_size);
    if (*buffer == nullptr) return pyruntime::NewError(TRITONSERVER_ERROR_UNAVAILABLE, "CPU memory allocation failed");
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONBACKEND_MemoryManagerFree(
    TRITONBACKEND_MemoryManager* manager, void* buffer, const TRITONSERVER_MemoryType memory_type,
    const int64_t /*memory_type_id*/) {
  PYRUNTIME_REQUIRE(manager);
  PYRUNTIME_GUARD({
    if (memory_type != TRITONSERVER_MEMORY_CPU) {
      return pyruntime::InvalidArgument(
          __func__, std::string("no ") + TRITONSERVER_MemoryTypeString(memory_type) + " memory was allocated");
    }
    std::free(buffer);
    return nullptr;
  });
}

}  // extern "C"
