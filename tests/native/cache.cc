// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A response cache that keeps everything, and logs its calls, a line each, in the file that the environment variable
// CACHE_LOG names.
//
// Its settings: fail, throw: the function that does so. lose: an entry is found and not copied. spoil: stored contents
// are changed. misuse: it makes forbidden calls at each insertion, and logs the errors.
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "common.h"
#include "triton/core/tritoncache.h"

namespace {

using testing::Must;

std::string Told(TRITONSERVER_Error* error) {
  const testing::Error owned(error);
  return error == nullptr ? "no error" : TRITONSERVER_ErrorMessage(error);
}

// Owned buffer attributes.
class Attributes {
 public:
  explicit Attributes(size_t size = 0, TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU) {
    Must(TRITONSERVER_BufferAttributesNew(&attributes_));
    Must(TRITONSERVER_BufferAttributesSetByteSize(attributes_, size));
    Must(TRITONSERVER_BufferAttributesSetMemoryType(attributes_, type));
    Must(TRITONSERVER_BufferAttributesSetMemoryTypeId(attributes_, 0));
  }
  ~Attributes() { Must(TRITONSERVER_BufferAttributesDelete(attributes_)); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;

  TRITONSERVER_BufferAttributes* get() const { return attributes_; }
  size_t size() const {
    size_t size = 0;
    Must(TRITONSERVER_BufferAttributesByteSize(attributes_, &size));
    return size;
  }

 private:
  TRITONSERVER_BufferAttributes* attributes_ = nullptr;
};

class Cache {
 public:
  explicit Cache(const std::string& config) : config_(config) { Told("initialize " + config); }

  TRITONSERVER_Error* Told(const std::string& line) {
    const std::string function = line.substr(0, line.find(' '));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const char* path = std::getenv("CACHE_LOG");
      if (path != nullptr) std::ofstream(path, std::ios::app) << line << std::endl;
    }
    if (Has("throw", function)) throw std::runtime_error("no " + function);
    return Has("fail", function) ? testing::Fail("no " + function) : nullptr;
  }

  bool Has(const std::string& name, const std::string& value) const {
    return config_.find("\"" + name + "\":\"" + value + "\"") != std::string::npos;
  }

  TRITONSERVER_Error* Lookup(const std::string& key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
    RETURN_IF_ERROR(Told("lookup " + key));
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = kept_.find(key);
    if (found == kept_.end()) return testing::Fail("nothing is kept for " + key, TRITONSERVER_ERROR_NOT_FOUND);
    for (std::vector<char>& buffer : found->second) {
      const Attributes attributes(buffer.size());
      RETURN_IF_ERROR(TRITONCACHE_CacheEntryAddBuffer(entry, buffer.data(), attributes.get()));
    }
    return Has("lose", "true") ? nullptr : TRITONCACHE_Copy(allocator, entry);
  }

  TRITONSERVER_Error* Insert(const std::string& key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
    RETURN_IF_ERROR(Told("insert " + key));
    if (Has("misuse", "true")) Misuse(entry, allocator);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_.count(key) != 0) return testing::Fail(key + " is kept", TRITONSERVER_ERROR_ALREADY_EXISTS);
    size_t count = 0;
    RETURN_IF_ERROR(TRITONCACHE_CacheEntryBufferCount(entry, &count));
    std::vector<std::vector<char>> buffers(count);
    for (size_t index = 0; index < count; ++index) {
      void* base = nullptr;
      const Attributes attributes;
      RETURN_IF_ERROR(TRITONCACHE_CacheEntryGetBuffer(entry, index, &base, attributes.get()));
      buffers[index].resize(attributes.size());
      RETURN_IF_ERROR(TRITONCACHE_CacheEntrySetBuffer(entry, index, buffers[index].data(), attributes.get()));
    }
    RETURN_IF_ERROR(TRITONCACHE_Copy(allocator, entry));
    if (Has("spoil", "true")) buffers[0][8] = 'x';
    kept_[key] = std::move(buffers);
    return nullptr;
  }

 private:
  void Misuse(TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
    void* base = nullptr;
    char byte = 0;
    const Attributes attributes(1);
    const Attributes gpu(1, TRITONSERVER_MEMORY_GPU);
    Told("index: " + ::Told(TRITONCACHE_CacheEntryGetBuffer(entry, 9, &base, attributes.get())));
    Told("set: " + ::Told(TRITONCACHE_CacheEntrySetBuffer(entry, 9, &byte, attributes.get())));
    Told("gpu: " + ::Told(TRITONCACHE_CacheEntryAddBuffer(entry, &byte, gpu.get())));
    Told("null: " + ::Told(TRITONCACHE_CacheEntryAddBuffer(entry, nullptr, attributes.get())));
    const Attributes before;
    Must(TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, before.get()));
    Must(TRITONCACHE_CacheEntrySetBuffer(entry, 0, &byte, Attributes(1).get()));
    Told("size: " + ::Told(TRITONCACHE_Copy(allocator, entry)));
    Must(TRITONCACHE_CacheEntrySetBuffer(entry, 0, base, before.get()));
    Must(TRITONCACHE_CacheEntrySetBuffer(entry, 0, base, nullptr));
  }

  const std::string config_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<std::vector<char>>> kept_;
};

Cache& From(TRITONCACHE_Cache* cache) { return *reinterpret_cast<Cache*>(cache); }

}  // namespace

extern "C" {

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config) {
  auto made = std::make_unique<Cache>(config);
  if (made->Has("fail", "begin")) return testing::Fail("no begin");
  *cache = reinterpret_cast<TRITONCACHE_Cache*>(made.release());
  return nullptr;
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* cache) {
  const std::unique_ptr<Cache> owned(&From(cache));
  return owned->Told("finalize");
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheLookup(TRITONCACHE_Cache* cache, const char* key,
                                                              TRITONCACHE_CacheEntry* entry,
                                                              TRITONCACHE_Allocator* allocator) {
  return From(cache).Lookup(key, entry, allocator);
}

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInsert(TRITONCACHE_Cache* cache, const char* key,
                                                              TRITONCACHE_CacheEntry* entry,
                                                              TRITONCACHE_Allocator* allocator) {
  return From(cache).Insert(key, entry, allocator);
}

}  // extern "C"
