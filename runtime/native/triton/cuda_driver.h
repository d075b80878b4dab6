// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory of GPUs, and pinned memory, through NVIDIA's driver. It is loaded when a backend asks for such memory, and not
// before: only then has this process a CUDA context of ours. Backends have theirs by what they call themselves; both
// are the primary context of the GPU, which a process pays for once.
//
// utils/gpu/cuda.py is the same for Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace pyruntime {

// Any thread; the context of the calling thread is the same before and after each call. Functions return why they have
// failed, in the driver's words.
class CudaDriver {
 public:
  using Reason = std::optional<std::string>;

  // The driver; null, with the reason, if this machine has none that works. Loads and initialises it, which takes up to
  // seconds, until it has succeeded once.
  static CudaDriver* Find(std::string* reason);

  Reason Allocate(int64_t device, size_t size, void** memory);
  // Pinned memory for all GPUs. It belongs to the context of the calling thread; if that has none, to the first GPU's.
  Reason AllocatePinned(size_t size, void** memory);
  // Copies between main memory and a GPU. All work that the process has given to the GPU's default stream comes before
  // it. Complete at the return.
  Reason Read(int64_t device, void* target, const void* memory, size_t size);
  Reason Write(int64_t device, void* memory, const void* source, size_t size);

 private:
  using Status = int;
  using Context = void*;

  // Has the primary context of a GPU for the life of the object.
  class Current;

  CudaDriver() = default;
  Reason Load();
  Reason ContextOf(int64_t device, Context* context);
  Reason Explain(Status status) const;
  template <typename Call>
  Reason OnDevice(int64_t device, Call&& call);

  Status (*init_)(unsigned) = nullptr;
  Status (*explain_)(Status, const char**) = nullptr;
  Status (*device_)(int*, int) = nullptr;
  Status (*retain_)(Context*, int) = nullptr;
  Status (*current_)(Context*) = nullptr;
  Status (*push_)(Context) = nullptr;
  Status (*pop_)(Context*) = nullptr;
  Status (*allocate_)(uint64_t*, size_t) = nullptr;
  Status (*allocate_pinned_)(void**, size_t, unsigned) = nullptr;
  Status (*read_)(void*, uint64_t, size_t) = nullptr;
  Status (*write_)(uint64_t, const void*, size_t) = nullptr;
  Status (*settle_)(void*) = nullptr;

  std::mutex mutex_;
  // The primary contexts, by the numbers of the GPUs. They are kept as long as the process lives.
  std::unordered_map<int64_t, Context> contexts_;
};

}  // namespace pyruntime
