// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "response_cache.h"

#include <utility>

#include "plugins.h"

namespace pyruntime {

std::optional<Failure> ResponseCache::Open() {
  void* handle = nullptr;
  if (std::optional<Failure> failure = OpenPlugin(path_, &handle)) return failure;
  Find(handle, "TRITONCACHE_CacheInitialize", &initialize_);
  if (initialize_ == nullptr) return MissingEntryPoint("TRITONCACHE_CacheInitialize");
  Find(handle, "TRITONCACHE_CacheFinalize", &finalize_);
  if (finalize_ == nullptr) return MissingEntryPoint("TRITONCACHE_CacheFinalize");
  Find(handle, "TRITONCACHE_CacheLookup", &lookup_);
  if (lookup_ == nullptr) return MissingEntryPoint("TRITONCACHE_CacheLookup");
  Find(handle, "TRITONCACHE_CacheInsert", &insert_);
  if (insert_ == nullptr) return MissingEntryPoint("TRITONCACHE_CacheInsert");
  return std::nullopt;
}

std::optional<Failure> ResponseCache::Initialize(const std::string& config) {
  std::optional<Failure> failure = Guarded(
      "TRITONCACHE_CacheInitialize", [this, &config] { return initialize_(&cache_, config.c_str()); });
  phase_ = failure ? Phase::kFinalized : Phase::kInitialized;
  return failure;
}

std::optional<Failure> ResponseCache::Finalize() {
  if (std::exchange(phase_, Phase::kFinalized) != Phase::kInitialized) return std::nullopt;
  return Guarded("TRITONCACHE_CacheFinalize", [this] { return finalize_(cache_); });
}

std::optional<Failure> ResponseCache::Lookup(const std::string& key, std::vector<Buffer>* buffers) {
  TRITONCACHE_CacheEntry entry;
  TRITONCACHE_Allocator allocator;
  std::optional<Failure> failure = Guarded(
      "TRITONCACHE_CacheLookup", [&] { return lookup_(cache_, key.c_str(), &entry, &allocator); });
  if (failure) return failure;
  if (!allocator.copied) {
    return Failure{TRITONSERVER_ERROR_INTERNAL, "TRITONCACHE_CacheLookup has found an entry and did not copy it"};
  }
  *buffers = std::move(allocator.copies);
  return std::nullopt;
}

std::optional<Failure> ResponseCache::Insert(
    const std::string& key, std::vector<TRITONCACHE_CacheEntry::Slot> sources) {
  TRITONCACHE_CacheEntry entry{sources};
  TRITONCACHE_Allocator allocator;
  allocator.sources = std::move(sources);
  allocator.inserts = true;
  return Guarded("TRITONCACHE_CacheInsert", [&] { return insert_(cache_, key.c_str(), &entry, &allocator); });
}

}  // namespace pyruntime
