// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "memory_manager.h"

#include <cstdlib>

#include "arguments.h"
#include "buffer.h"
#include "host.h"
#include "triton/core/tritonbackend.h"

using pyruntime::Host;
using pyruntime::ToError;

namespace {

// Backends written in C may pass any number.
TRITONSERVER_Error* NoType(const char* function) {
  return pyruntime::InvalidArgument(function, "there is no such type of memory");
}

TRITONSERVER_Error* AllocateOfSystem(void** buffer, uint64_t byte_size) {
  *buffer = pyruntime::AllocateAligned(byte_size);
  if (*buffer != nullptr) return nullptr;
  return pyruntime::NewError(TRITONSERVER_ERROR_UNAVAILABLE, "CPU memory allocation failed");
}

}  // namespace

extern "C" {

// Where there is no memory of the wanted type, the error lets backends try another one. Triton's does the same.
TRITONSERVER_Error* TRITONBACKEND_MemoryManagerAllocate(
    TRITONBACKEND_MemoryManager* manager, void** buffer, const TRITONSERVER_MemoryType memory_type,
    const int64_t memory_type_id, const uint64_t byte_size) {
  PYRUNTIME_REQUIRE(manager);
  PYRUNTIME_REQUIRE(buffer);
  PYRUNTIME_GUARD({
    *buffer = nullptr;
    pyruntime::MemoryPools& pools = Host::Get().pools();
    switch (memory_type) {
      case TRITONSERVER_MEMORY_CPU: return AllocateOfSystem(buffer, byte_size);
      case TRITONSERVER_MEMORY_CPU_PINNED: return ToError(pools.AllocatePinned(byte_size, buffer));
      case TRITONSERVER_MEMORY_GPU: return ToError(pools.AllocateOnGpu(memory_type_id, byte_size, buffer));
    }
    return NoType(__func__);
  });
}

TRITONSERVER_Error* TRITONBACKEND_MemoryManagerFree(
    TRITONBACKEND_MemoryManager* manager, void* buffer, const TRITONSERVER_MemoryType memory_type,
    const int64_t memory_type_id) {
  PYRUNTIME_REQUIRE(manager);
  PYRUNTIME_GUARD({
    pyruntime::MemoryPools& pools = Host::Get().pools();
    switch (memory_type) {
      case TRITONSERVER_MEMORY_CPU: std::free(buffer); return nullptr;
      case TRITONSERVER_MEMORY_CPU_PINNED: return ToError(pools.FreePinned(buffer));
      case TRITONSERVER_MEMORY_GPU: return ToError(pools.FreeOnGpu(memory_type_id, buffer));
    }
    return NoType(__func__);
  });
}

}  // extern "C"
