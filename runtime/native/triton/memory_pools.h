// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory and memory of GPUs for backends: one pool of each kind and GPU, as in Triton, because the driver takes
// long to allocate such memory, and has the whole GPU wait when it frees some. A pool is allocated when a backend first
// asks for some of it, and stays.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cuda_driver.h"
#include "error.h"
#include "memory_arena.h"

namespace pyruntime {

// Any thread. Failures are in Triton's words, with the driver's reason behind them.
class MemoryPools {
 public:
  // The size of the pool of a GPU that `SetSizes` does not name.
  static constexpr size_t kGpuBytes = size_t{64} << 20;
  static constexpr size_t kPinnedBytes = size_t{256} << 20;

  // The sizes of pools that are not allocated yet; 0 for none.
  void SetSizes(size_t pinned, std::map<int64_t, size_t> gpus);

  std::optional<Failure> AllocatePinned(size_t size, void** memory);
  std::optional<Failure> FreePinned(void* memory);
  std::optional<Failure> AllocateOnGpu(int64_t device, size_t size, void** memory);
  std::optional<Failure> FreeOnGpu(int64_t device, void* memory);

  // Of the pool of pinned memory, in bytes; 0 while there is none. These wait for nobody.
  size_t pinned_size() const { return pinned_size_; }
  size_t pinned_used() const { return pinned_used_; }

 private:
  // A pool that was asked for; `missing` says why there is none.
  struct Pool {
    std::unique_ptr<MemoryArena> arena;
    std::string missing;
  };
  using Allocate = std::function<CudaDriver::Reason(CudaDriver&, void**)>;

  static Pool Make(size_t size, const Allocate& allocate);
  // With the mutex held.
  Pool& Pinned();
  Pool& OfGpu(int64_t device);

  std::mutex mutex_;
  size_t pinned_bytes_ = kPinnedBytes;
  std::map<int64_t, size_t> gpu_bytes_;
  std::optional<Pool> pinned_;
  std::map<int64_t, Pool> gpus_;
  std::atomic<size_t> pinned_size_{0};
  std::atomic<size_t> pinned_used_{0};
};

}  // namespace pyruntime
