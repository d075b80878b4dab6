// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory for outputs: owned blocks, aligned for any datatype and any SIMD load, which go to the client as they are.

#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace pyruntime {

class BufferPool;

// Memory aligned for any use, to be freed with `free`; null if there is none. Not null for 0 bytes.
void* AllocateAligned(size_t size);

// One block, owned by its object: an output, a state, or the Python object of an output.
class Buffer {
 public:
  Buffer() = default;
  // `pool` must outlive the buffer. Throws std::bad_alloc.
  Buffer(BufferPool* pool, size_t size);
  // Keeps the pool. Throws std::bad_alloc.
  Buffer(std::shared_ptr<BufferPool> pool, size_t size);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  size_t size() const { return size_; }
  // The address of the memory for other processes; 0 if they cannot read it.
  uint64_t address() const;

 private:
  std::shared_ptr<BufferPool> kept_pool_;
  BufferPool* pool_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

// Memory of a GPU that Python has allocated. It is `owner`'s, which any thread may release; null for no memory.
struct GpuBlock {
  void* data = nullptr;
  std::shared_ptr<PyObject> owner;
};

// Where a pool has its large blocks from. Any thread.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // A new block; null if there is no memory.
  virtual void* Allocate(size_t capacity) = 0;
  virtual void Free(void* data, size_t capacity) noexcept = 0;
  // See Buffer.
  virtual uint64_t AddressOf(const void* data) const = 0;
};

// Keeps large blocks that are free again: new memory from the system costs more than filling it, because the kernel
// must map and clear each page. Any thread.
class BufferPool {
 public:
  // The smallest block that is kept: malloc has smaller ones at hand.
  static constexpr size_t kKeptBlockBytesMin = 128 << 10;
  // The most free memory that is kept; the rest is returned to the system.
  static constexpr size_t kKeptBytesMax = 256 << 20;

  explicit BufferPool(std::unique_ptr<BlockSource> source);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

 private:
  friend class Buffer;
  struct Block {
    void* data;
    size_t capacity;
  };

  // A block of a capacity of at least `size`; throws std::bad_alloc.
  Block Take(size_t size);
  void Give(Block block) noexcept;

  const std::unique_ptr<BlockSource> source_;
  std::mutex mutex_;
  // In the order in which they became free.
  std::vector<Block> free_;
  size_t kept_ = 0;
};

// Memory of this process alone.
class HeapBlocks : public BlockSource {
 public:
  void* Allocate(size_t capacity) override;
  void Free(void* data, size_t capacity) noexcept override;
  uint64_t AddressOf(const void* /*data*/) const override { return 0; }
};

}  // namespace pyruntime
