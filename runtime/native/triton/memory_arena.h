// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Divides a range of addresses into blocks. It never touches the memory, which may be that of a GPU.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace pyruntime {

// Not thread-safe.
class MemoryArena {
 public:
  // Blocks begin at multiples of this from the beginning, as those of CUDA's own functions do.
  static constexpr size_t kAlignment = 256;

  MemoryArena(void* begin, size_t size);

  // The first block that is large enough, so that the end stays whole for as long as possible. Null if there is none.
  // Not null for 0 bytes.
  void* Allocate(size_t size);
  // False if `block` is not one that `Allocate` returned and that is still in use.
  bool Free(void* block);

  size_t size() const { return size_; }
  // The bytes of all blocks in use, rounded up.
  size_t used() const { return used_; }

 private:
  using Blocks = std::map<uintptr_t, size_t>;  // the sizes by the addresses

  const size_t size_;
  size_t used_ = 0;
  Blocks free_;
  Blocks taken_;
};

}  // namespace pyruntime
