// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU for torch: in ranges that other processes can open, and where those are full, the driver's.
//
// torch calls torch_allocator_malloc and torch_allocator_free from any thread, and holds the lock of its allocator meanwhile.
// Another thread may wait for that lock and have the GIL: the code that torch.compile makes allocates so. A function here
// that waited for the GIL would then wait for ever. For the same reason a thread that has the GIL already must not run
// Python code here: that lets other threads have the GIL in between. So nothing here calls Python, and
// ../torch_allocator.py hands ranges over in advance.
//
// `mutex` is the last lock that a thread takes: it calls nothing that waits while it has it.
//
// It uses nothing of Python, so that one library serves stubs of any version, and nothing of CUDA, so that it can be built
// without: the driver's functions are handed over, too.

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

// Blocks begin at a multiple of this, as torch expects of its allocators.
#define ALIGNMENT 512

// The GPUs of one process.
#define DEVICES_MAX 64

// A part of a range. The blocks of a range follow each other without gaps, and no two free ones are neighbours.
struct Block {
  struct Block* next;
  uintptr_t begin;
  size_t size;
  int device;
  int is_first;  // of its range
  int is_used;
};

// See NativeFunctions in utils/gpu/native.py. All functions return 0 if they succeed.
struct Driver {
  void* context;
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*allocate)(uint64_t* pointer, size_t size);
  int (*free)(uint64_t pointer);
  int (*settle)(void);
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct Block* blocks;
static struct Driver drivers[DEVICES_MAX];
static size_t lacked_bytes;

// Cuts `size` bytes off the front of a free block, and takes them. 0 if there is no memory to note the rest.
static int Take(struct Block* block, size_t size) {
  if (block->size > size) {
    struct Block* rest = malloc(sizeof(*rest));
    if (rest == NULL) return 0;
    *rest = (struct Block){block->next, block->begin + size, block->size - size, block->device, 0, 0};
    block->next = rest;
    block->size = size;
  }
  block->is_used = 1;
  return 1;
}

// Has a free block take in its neighbour behind it, if that is free, and of the same range.
static void Join(struct Block* block) {
  struct Block* next = block->next;
  if (next == NULL || next->is_first || next->is_used) return;
  block->size += next->size;
  block->next = next->next;
  free(next);
}

// Memory in a range. NULL if none of this GPU has room.
static void* FromRange(size_t size, int device) {
  void* found = NULL;
  pthread_mutex_lock(&mutex);
  for (struct Block* block = blocks; block != NULL && found == NULL; block = block->next)
    if (!block->is_used && block->device == device && block->size >= size && Take(block, size))
      found = (void*)block->begin;
  if (found == NULL) lacked_bytes += size;
  pthread_mutex_unlock(&mutex);
  return found;
}

// Whether the memory was in a range. It is free now.
static int ToRange(uintptr_t pointer) {
  int is_found = 0;
  pthread_mutex_lock(&mutex);
  struct Block* before = NULL;
  for (struct Block* block = blocks; block != NULL && !is_found; before = block, block = block->next) {
    if (block->begin != pointer || !block->is_used) continue;
    is_found = 1;
    block->is_used = 0;
    Join(block);
    if (before != NULL && !before->is_used && !block->is_first) Join(before);
    break;
  }
  pthread_mutex_unlock(&mutex);
  return is_found;
}

static struct Driver DriverOf(int device) {
  struct Driver driver = {0};
  if (device < 0 || device >= DEVICES_MAX) return driver;
  pthread_mutex_lock(&mutex);
  driver = drivers[device];
  pthread_mutex_unlock(&mutex);
  return driver;
}

// For torch: `size` bytes of memory of a GPU, NULL if there are none.
EXPORT void* torch_allocator_malloc(ssize_t size, int device, void* stream) {
  (void)stream;  // torch orders the uses of a block itself
  if (size <= 0) return NULL;
  void* found = FromRange(((size_t)size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, device);
  if (found != NULL) return found;
  const struct Driver driver = DriverOf(device);
  uint64_t pointer = 0;
  if (driver.allocate == NULL || driver.push(driver.context) != 0) return NULL;
  if (driver.allocate(&pointer, (size_t)size) != 0) pointer = 0;
  driver.pop(&(void*){NULL});
  return (void*)(uintptr_t)pointer;
}

// For torch: frees what torch_allocator_malloc returned. Like cudaFree, whose place it has, it waits for all work on the
// GPU first: work on `stream` may still use the memory.
EXPORT void torch_allocator_free(void* pointer, ssize_t size, int device, void* stream) {
  (void)size;
  (void)stream;
  const struct Driver driver = DriverOf(device);
  if (pointer == NULL || driver.free == NULL) return;
  const int is_current = driver.push(driver.context) == 0;
  if (is_current) driver.settle();
  if (!ToRange((uintptr_t)pointer) && is_current) driver.free((uint64_t)(uintptr_t)pointer);
  if (is_current) driver.pop(&(void*){NULL});
}

// For Python: the functions for memory of one GPU that is in no range. -1 if there are too many GPUs.
EXPORT int torch_allocator_use(int device, const struct Driver* driver) {
  if (device < 0 || device >= DEVICES_MAX) return -1;
  pthread_mutex_lock(&mutex);
  drivers[device] = *driver;
  pthread_mutex_unlock(&mutex);
  return 0;
}

// For Python: adds memory of one GPU, which stays valid until the process ends. -1 if there is no memory to note it.
EXPORT int torch_allocator_add(int device, uintptr_t begin, size_t size) {
  struct Block* block = malloc(sizeof(*block));
  if (block == NULL) return -1;
  pthread_mutex_lock(&mutex);
  *block = (struct Block){blocks, begin, size, device, 1, 0};
  blocks = block;
  pthread_mutex_unlock(&mutex);
  return 0;
}

// For Python: the bytes that torch has asked for and that no range had room for.
EXPORT size_t torch_allocator_lacked(void) {
  pthread_mutex_lock(&mutex);
  const size_t lacked = lacked_bytes;
  pthread_mutex_unlock(&mutex);
  return lacked;
}
