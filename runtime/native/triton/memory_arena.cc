// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "memory_arena.h"

#include <algorithm>
#include <iterator>

namespace pyruntime {

MemoryArena::MemoryArena(void* begin, size_t size) : size_(size / kAlignment * kAlignment) {
  if (size_ != 0) free_[reinterpret_cast<uintptr_t>(begin)] = size_;
}

void* MemoryArena::Allocate(size_t size) {
  if (size > size_) return nullptr;  // also, so that the sum below cannot overflow
  const size_t whole = std::max(size_t{1}, (size + kAlignment - 1) / kAlignment) * kAlignment;
  const auto found = std::find_if(free_.begin(), free_.end(), [whole](const auto& each) { return each.second >= whole; });
  if (found == free_.end()) return nullptr;
  const auto [begin, free] = *found;
  taken_.emplace(begin, whole);  // before anything changes, because it may throw
  if (free == whole) {
    free_.erase(found);
  } else {
    auto rest = free_.extract(found);
    rest.key() = begin + whole;
    rest.mapped() = free - whole;
    free_.insert(std::move(rest));
  }
  used_ += whole;
  return reinterpret_cast<void*>(begin);
}

bool MemoryArena::Free(void* block) {
  auto freed = taken_.extract(reinterpret_cast<uintptr_t>(block));
  if (freed.empty()) return false;
  used_ -= freed.mapped();
  auto at = free_.insert(std::move(freed)).position;
  if (const auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    const auto previous = std::prev(at);
    if (previous->first + previous->second == at->first) {
      previous->second += at->second;
      free_.erase(at);
    }
  }
  return true;
}

}  // namespace pyruntime
