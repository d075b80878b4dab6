// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "memory_pools.h"

#include <sstream>
#include <utility>

#include "triton/core/tritonserver.h"

namespace pyruntime {
namespace {

constexpr char kNoPinned[] = "failed to allocate pinned system memory";
constexpr char kNoGpuPool[] = "CudaMemoryManager has no preallocated CUDA memory";

std::string Hexadecimal(const void* address) {
  std::ostringstream text;
  text << address;
  return text.str();
}

Failure Internal(std::string message) { return {TRITONSERVER_ERROR_INTERNAL, std::move(message)}; }

}  // namespace

void MemoryPools::SetSizes(size_t pinned, std::map<int64_t, size_t> gpus) {
  const std::lock_guard<std::mutex> lock(mutex_);
  pinned_bytes_ = pinned;
  gpu_bytes_ = std::move(gpus);
}

MemoryPools::Pool MemoryPools::Make(size_t size, const Allocate& allocate) {
  Pool pool;
  if (size == 0) {
    pool.missing = "its size is 0";
  } else if (CudaDriver* const driver = CudaDriver::Find(&pool.missing)) {
    void* begin = nullptr;
    if (auto reason = allocate(*driver, &begin)) {
      pool.missing = std::move(*reason);
    } else {
      pool.arena = std::make_unique<MemoryArena>(begin, size);
    }
  }
  return pool;
}

MemoryPools::Pool& MemoryPools::Pinned() {
  if (pinned_) return *pinned_;
  const size_t size = pinned_bytes_;
  Pool& pool = pinned_.emplace(
      Make(size, [size](CudaDriver& driver, void** begin) { return driver.AllocatePinned(size, begin); }));
  if (pool.arena != nullptr) pinned_size_ = pool.arena->size();
  return pool;
}

MemoryPools::Pool& MemoryPools::OfGpu(int64_t device) {
  const auto known = gpus_.find(device);
  if (known != gpus_.end()) return known->second;
  const auto wanted = gpu_bytes_.find(device);
  const size_t size = wanted == gpu_bytes_.end() ? kGpuBytes : wanted->second;
  const auto allocate = [=](CudaDriver& driver, void** begin) { return driver.Allocate(device, size, begin); };
  return gpus_.emplace(device, Make(size, allocate)).first->second;
}

std::optional<Failure> MemoryPools::AllocatePinned(size_t size, void** memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Pool& pool = Pinned();
  if (pool.arena == nullptr) return Internal(std::string(kNoPinned) + ": no pinned memory pool: " + pool.missing);
  *memory = pool.arena->Allocate(size);
  if (*memory == nullptr) return Internal(kNoPinned);
  pinned_used_ = pool.arena->used();
  return std::nullopt;
}

std::optional<Failure> MemoryPools::FreePinned(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pinned_ && pinned_->arena != nullptr && pinned_->arena->Free(memory)) {
    pinned_used_ = pinned_->arena->used();
    return std::nullopt;
  }
  return Internal("unexpected memory address '" + Hexadecimal(memory) + "' is not being managed");
}

std::optional<Failure> MemoryPools::AllocateOnGpu(int64_t device, size_t size, void** memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Pool& pool = OfGpu(device);
  if (pool.arena == nullptr) {
    return Failure{TRITONSERVER_ERROR_UNAVAILABLE, std::string(kNoGpuPool) + ": " + pool.missing};
  }
  *memory = pool.arena->Allocate(size);
  if (*memory != nullptr) return std::nullopt;
  return Internal(
      "Failed to allocate CUDA memory with byte size " + std::to_string(size) + " on GPU " + std::to_string(device) +
      ": CNMEM_STATUS_OUT_OF_MEMORY");
}

std::optional<Failure> MemoryPools::FreeOnGpu(int64_t device, void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = gpus_.find(device);
  if (known == gpus_.end() || known->second.arena == nullptr) {
    return Failure{TRITONSERVER_ERROR_UNAVAILABLE, kNoGpuPool};
  }
  if (known->second.arena->Free(memory)) return std::nullopt;
  return Internal(
      "Failed to deallocate CUDA memory at address " + Hexadecimal(memory) + " on GPU " + std::to_string(device) +
      ": CNMEM_STATUS_INVALID_ARGUMENT");
}

}  // namespace pyruntime
