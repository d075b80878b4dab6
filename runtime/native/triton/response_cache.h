// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Response caches: libraries that keep buffers by keys. What is in a buffer is decided in Python: see runtime/caching.
//
// An entry is what the library and the server hand each other in one call. The server's side of it, where the contents
// come from or go to, is the allocator.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "buffer.h"
#include "error.h"
#include "triton/core/tritoncache.h"
#include "values.h"

struct TRITONCACHE_CacheEntry {
  struct Slot {
    void* base;
    TRITONSERVER_BufferAttributes attributes;
  };
  std::vector<Slot> slots;
};

// Either `sources` are to be copied into the entry, or the entry's buffers into `copies`.
struct TRITONCACHE_Allocator {
  std::vector<TRITONCACHE_CacheEntry::Slot> sources;
  std::vector<pyruntime::Buffer> copies;
  bool inserts = false;
  bool copied = false;
};

namespace pyruntime {

class ResponseCache {
 public:
  explicit ResponseCache(std::string path) : path_(std::move(path)) {}

  // These block, and are called without the GIL, by one thread after the other.
  std::optional<Failure> Open();
  std::optional<Failure> Initialize(const std::string& config);
  std::optional<Failure> Finalize();

  // Any number of threads, without the GIL, between Initialize and Finalize. Fails with NOT_FOUND if there is nothing.
  std::optional<Failure> Lookup(const std::string& key, std::vector<Buffer>* buffers);
  // Nothing is kept of the sources afterwards. Fails with ALREADY_EXISTS if the key is there.
  std::optional<Failure> Insert(const std::string& key, std::vector<TRITONCACHE_CacheEntry::Slot> sources);

 private:
  using CacheInitialize = TRITONSERVER_Error* (*)(TRITONCACHE_Cache**, const char*);
  using CacheFinalize = TRITONSERVER_Error* (*)(TRITONCACHE_Cache*);
  using CacheAccess = TRITONSERVER_Error* (*)(
      TRITONCACHE_Cache*, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*);

  std::string path_;
  CacheInitialize initialize_ = nullptr;
  CacheFinalize finalize_ = nullptr;
  CacheAccess lookup_ = nullptr;
  CacheAccess insert_ = nullptr;
  Phase phase_ = Phase::kNew;
  // What the library makes of itself.
  TRITONCACHE_Cache* cache_ = nullptr;
};

}  // namespace pyruntime
