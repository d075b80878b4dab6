// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <new>
#include <utility>

namespace pyruntime {
namespace {

// A cache line, and the width of the widest SIMD loads.
constexpr size_t kAlignment = 64;
// Capacities of kept blocks are a power of two and this many steps to the next: a block is found again for sizes that
// differ a little, and a fifth of it at most is unused.
constexpr size_t kStepsPerDoubling = 4;

constexpr size_t RoundUp(size_t size, size_t step) { return (size + step - 1) / step * step; }

// The capacity of a block for `size` bytes.
size_t CapacityOf(size_t size) {
  if (size < BufferPool::kKeptBlockBytesMin) return size;
  size_t doubled = BufferPool::kKeptBlockBytesMin;
  while (doubled <= size / 2) doubled *= 2;
  return RoundUp(size, doubled / kStepsPerDoubling);
}

// A small block is a part of one of malloc's, which is three to five times as fast as one that malloc aligns; the
// address of the whole stands before it.
void* AllocateSmall(size_t size) {
  void* whole = std::malloc(size + kAlignment + sizeof(void*));
  if (whole == nullptr) return nullptr;
  void* data = reinterpret_cast<void*>(RoundUp(reinterpret_cast<uintptr_t>(whole) + sizeof(void*), kAlignment));
  static_cast<void**>(data)[-1] = whole;
  return data;
}

void FreeSmall(void* data) { std::free(static_cast<void**>(data)[-1]); }

}  // namespace

void* AllocateAligned(size_t size) {
  // More than half of all memory that can be addressed is a mistake, and would make the sum overflow.
  if (size > PTRDIFF_MAX) return nullptr;
  return std::aligned_alloc(kAlignment, size == 0 ? kAlignment : RoundUp(size, kAlignment));
}

// New memory is brought in by huge pages, where the system allows it: four to six times as fast.
void* HeapBlocks::Allocate(size_t capacity) {
  constexpr size_t kHugePage = size_t{2} << 20;
  if (capacity < 2 * kHugePage) return AllocateAligned(capacity);
  capacity = RoundUp(capacity, kHugePage);
  void* data = std::aligned_alloc(kHugePage, capacity);
  if (data != nullptr) madvise(data, capacity, MADV_HUGEPAGE);
  return data;
}

void HeapBlocks::Free(void* data, size_t /*capacity*/) noexcept { std::free(data); }

Buffer::Buffer(BufferPool* pool, size_t size) : pool_(pool), size_(size) {
  BufferPool::Block block = pool->Take(size);
  data_ = block.data;
  capacity_ = block.capacity;
}

Buffer::Buffer(std::shared_ptr<BufferPool> pool, size_t size) : Buffer(pool.get(), size) {
  kept_pool_ = std::move(pool);
}

Buffer::~Buffer() {
  if (data_ != nullptr) pool_->Give({data_, capacity_});
}

Buffer::Buffer(Buffer&& other) noexcept
    : kept_pool_(std::move(other.kept_pool_)),
      pool_(other.pool_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(kept_pool_, other.kept_pool_);
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

uint64_t Buffer::address() const {
  return capacity_ < BufferPool::kKeptBlockBytesMin ? 0 : pool_->source_->AddressOf(data_);
}

// Has capacity for all blocks that can be kept, so that returning one never allocates.
BufferPool::BufferPool(std::unique_ptr<BlockSource> source) : source_(std::move(source)) {
  free_.reserve(kKeptBytesMax / kKeptBlockBytesMin);
}

BufferPool::~BufferPool() {
  for (const Block& block : free_) source_->Free(block.data, block.capacity);
}

BufferPool::Block BufferPool::Take(size_t size) {
  if (size > PTRDIFF_MAX) throw std::bad_alloc();
  const size_t capacity = CapacityOf(size);
  if (capacity >= kKeptBlockBytesMin && capacity <= kKeptBytesMax) {
    std::lock_guard<std::mutex> lock(mutex_);
    // The latest first, because parts of it may still be in the processor's caches.
    for (auto block = free_.rbegin(); block != free_.rend(); ++block) {
      if (block->capacity != capacity) continue;
      const Block found = *block;
      free_.erase(std::next(block).base());
      kept_ -= capacity;
      return found;
    }
  }
  void* data = capacity < kKeptBlockBytesMin ? AllocateSmall(capacity) : source_->Allocate(capacity);
  if (data == nullptr) throw std::bad_alloc();
  return {data, capacity};
}

void BufferPool::Give(Block block) noexcept {
  if (block.capacity < kKeptBlockBytesMin) return FreeSmall(block.data);
  if (block.capacity > kKeptBytesMax) return source_->Free(block.data, block.capacity);
  std::unique_lock<std::mutex> lock(mutex_);
  while (kept_ + block.capacity > kKeptBytesMax) {
    const Block oldest = free_.front();
    free_.erase(free_.begin());
    kept_ -= oldest.capacity;
    // Outside of the lock, because it takes long for large blocks.
    lock.unlock();
    source_->Free(oldest.data, oldest.capacity);
    lock.lock();
  }
  free_.push_back(block);
  kept_ += block.capacity;
}

}  // namespace pyruntime
