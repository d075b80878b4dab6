// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Shared memory for large outputs of an instance, which other processes read where the backend has written them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "buffer.h"
#include "memory_left.h"

namespace pyruntime {

// A region of Python's, in which nobody else allocates: a mapping and a descriptor of its own, so that it may be used
// after Python has closed the region. Blocks are as in utils/arena.py: their addresses are never split or joined, and
// memory without a block is given back to the system. Any thread.
class OutputRegion : public BlockSource {
 public:
  // Maps the first `size` bytes of the region. `first_address` is the address of its first byte for other processes:
  // see utils/addresses.py. Throws std::system_error.
  OutputRegion(int descriptor, size_t size, uint64_t first_address, std::vector<MemoryCgroup> cgroups);
  ~OutputRegion() override;
  OutputRegion(const OutputRegion&) = delete;
  OutputRegion& operator=(const OutputRegion&) = delete;

  // Null also if the region is full, or if too little memory would be left.
  void* Allocate(size_t capacity) override;
  void Free(void* data, size_t capacity) noexcept override;
  uint64_t AddressOf(const void* data) const override;

 private:
  // The offset of addresses without memory; `size_` if there are none left.
  size_t Reserve(size_t capacity);
  void Return(size_t offset, size_t capacity) noexcept;

  const size_t size_;
  const uint64_t first_address_;
  const std::vector<MemoryCgroup> cgroups_;
  int descriptor_;
  char* base_;
  std::mutex mutex_;
  // The end of all blocks so far.
  size_t top_ = 0;
  // Offsets of former blocks, which have no memory, by their capacity.
  std::unordered_map<size_t, std::vector<size_t>> cold_;
};

}  // namespace pyruntime
