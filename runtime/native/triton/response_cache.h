// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Response caches: libraries that keep buffers by keys. Python decides on the contents: see runtime/caching.
//
// An entry is the list of buffers in one call between library and server. The allocator is the server's side of it, the
// source or the destination of the contents.

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

// Either `sources` are copied into the entry, or the entry's buffers into `copies`.
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

  // These block, and are called without the GIL, by one thread at a time.
  std::optional<Failure> Open();
  std::optional<Failure> Initialize(const std::string& config);
  std::optional<Failure> Finalize();

  // Any number of threads, without the GIL, between Initialize and Finalize. Fails with NOT_FOUND if there is no entry.
  std::optional<Failure> Lookup(const std::string& key, std::vector<Buffer>* buffers);
  // Does not keep the sources. Fails with ALREADY_EXISTS if the key exists.
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
  // The library's own object.
  TRITONCACHE_Cache* cache_ = nullptr;
};

}  // namespace pyruntime
