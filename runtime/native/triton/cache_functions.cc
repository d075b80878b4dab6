// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions for response caches (TRITONCACHE_*).

#include <cstring>

#include "arguments.h"
#include "host.h"
#include "response_cache.h"

namespace {

using Slot = TRITONCACHE_CacheEntry::Slot;

TRITONSERVER_Error* CheckMemory(const TRITONSERVER_BufferAttributes& attributes) {
  if (attributes.memory_type != TRITONSERVER_MEMORY_GPU) return nullptr;
  return pyruntime::NewError(
      TRITONSERVER_ERROR_INVALID_ARG, "Only buffers in CPU memory are allowed in cache currently");
}

TRITONSERVER_Error* CheckIndex(const TRITONCACHE_CacheEntry& entry, size_t index) {
  if (index < entry.slots.size()) return nullptr;
  return pyruntime::NewError(
      TRITONSERVER_ERROR_INVALID_ARG,
      "index " + std::to_string(index) + " is out of bounds: the entry has " + std::to_string(entry.slots.size()) +
          " buffers");
}

TRITONSERVER_Error* Differs(const char* what, size_t expected, size_t actual) {
  return pyruntime::NewError(
      TRITONSERVER_ERROR_INTERNAL, std::string("Expected ") + what + " in cache does not match. Expected: " +
                                       std::to_string(expected) + ", received: " + std::to_string(actual));
}

void CopyBytes(void* target, const void* source, size_t size) {
  if (size != 0) std::memcpy(target, source, size);
}

TRITONSERVER_Error* CopyIn(const std::vector<Slot>& sources, const std::vector<Slot>& slots) {
  if (slots.size() != sources.size()) return Differs("number of buffers", sources.size(), slots.size());
  for (size_t index = 0; index < slots.size(); ++index) {
    const size_t size = sources[index].attributes.byte_size;
    if (slots[index].attributes.byte_size != size) {
      return Differs("size of buffer", size, slots[index].attributes.byte_size);
    }
    if (slots[index].base != sources[index].base) CopyBytes(slots[index].base, sources[index].base, size);
  }
  return nullptr;
}

void CopyOut(const std::vector<Slot>& slots, std::vector<pyruntime::Buffer>* copies) {
  copies->clear();
  for (const Slot& slot : slots) {
    pyruntime::Buffer& copy = copies->emplace_back(&pyruntime::Host::Get().buffers(), slot.attributes.byte_size);
    CopyBytes(copy.data(), slot.base, slot.attributes.byte_size);
  }
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONCACHE_CacheEntryBufferCount(TRITONCACHE_CacheEntry* entry, size_t* count) {
  PYRUNTIME_GET(entry, count, entry->slots.size());
}

TRITONSERVER_Error* TRITONCACHE_CacheEntryAddBuffer(
    TRITONCACHE_CacheEntry* entry, void* base, TRITONSERVER_BufferAttributes* buffer_attributes) {
  PYRUNTIME_REQUIRE(entry);
  PYRUNTIME_REQUIRE(base);
  PYRUNTIME_REQUIRE(buffer_attributes);
  PYRUNTIME_GUARD({
    if (TRITONSERVER_Error* error = CheckMemory(*buffer_attributes)) return error;
    entry->slots.push_back({base, *buffer_attributes});
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONCACHE_CacheEntryGetBuffer(
    TRITONCACHE_CacheEntry* entry, size_t index, void** base, TRITONSERVER_BufferAttributes* buffer_attributes) {
  PYRUNTIME_REQUIRE(entry);
  PYRUNTIME_REQUIRE(base);
  PYRUNTIME_REQUIRE(buffer_attributes);
  PYRUNTIME_GUARD({
    if (TRITONSERVER_Error* error = CheckIndex(*entry, index)) return error;
    *base = entry->slots[index].base;
    *buffer_attributes = entry->slots[index].attributes;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONCACHE_CacheEntrySetBuffer(
    TRITONCACHE_CacheEntry* entry, size_t index, void* new_base, TRITONSERVER_BufferAttributes* buffer_attributes) {
  PYRUNTIME_REQUIRE(entry);
  PYRUNTIME_REQUIRE(new_base);
  PYRUNTIME_GUARD({
    if (TRITONSERVER_Error* error = CheckIndex(*entry, index)) return error;
    if (buffer_attributes != nullptr) {  // null: the buffer is like the one before it
      if (TRITONSERVER_Error* error = CheckMemory(*buffer_attributes)) return error;
      entry->slots[index].attributes = *buffer_attributes;
    }
    entry->slots[index].base = new_base;
    return nullptr;
  });
}

TRITONSERVER_Error* TRITONCACHE_Copy(TRITONCACHE_Allocator* allocator, TRITONCACHE_CacheEntry* entry) {
  PYRUNTIME_REQUIRE(allocator);
  PYRUNTIME_REQUIRE(entry);
  PYRUNTIME_GUARD({
    if (allocator->inserts) return CopyIn(allocator->sources, entry->slots);
    CopyOut(entry->slots, &allocator->copies);
    allocator->copied = true;
    return nullptr;
  });
}

}  // extern "C"
