// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "output_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace pyruntime {
namespace {

std::system_error LastError(const char* what) { return std::system_error(errno, std::generic_category(), what); }

}  // namespace

OutputRegion::OutputRegion(
    int descriptor, size_t size, uint64_t first_address, std::vector<MemoryCgroup> cgroups)
    : size_(size), first_address_(first_address), cgroups_(std::move(cgroups)) {
  descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (descriptor_ < 0) throw LastError("fcntl");
  void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (base == MAP_FAILED) {
    const std::system_error error = LastError("mmap");
    close(descriptor_);
    throw error;
  }
  base_ = static_cast<char*>(base);
  madvise(base_, size_, MADV_DONTDUMP);  // keeps clients' tensors out of core dumps
}

OutputRegion::~OutputRegion() {
  munmap(base_, size_);
  close(descriptor_);
}

void* OutputRegion::Allocate(size_t capacity) {
  if (!IsMemoryLeft(cgroups_, capacity)) return nullptr;
  const size_t offset = Reserve(capacity);
  if (offset == size_) return nullptr;
  // Without it a lack of memory would be a bus error of the backend.
  if (posix_fallocate(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(capacity)) != 0) {
    Free(base_ + offset, capacity);  // a part of it may have memory
    return nullptr;
  }
  return base_ + offset;
}

void OutputRegion::Free(void* data, size_t capacity) noexcept {
  madvise(data, capacity, MADV_REMOVE);
  Return(static_cast<size_t>(static_cast<char*>(data) - base_), capacity);
}

uint64_t OutputRegion::AddressOf(const void* data) const {
  return first_address_ + static_cast<uint64_t>(static_cast<const char*>(data) - base_);
}

size_t OutputRegion::Reserve(size_t capacity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto cold = cold_.find(capacity);
  if (cold != cold_.end() && !cold->second.empty()) {
    const size_t offset = cold->second.back();
    cold->second.pop_back();
    return offset;
  }
  if (capacity > size_ - top_) return size_;
  return std::exchange(top_, top_ + capacity);
}

void OutputRegion::Return(size_t offset, size_t capacity) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    cold_[capacity].push_back(offset);
  } catch (const std::bad_alloc&) {
    // Only addresses are lost.
  }
}

}  // namespace pyruntime
