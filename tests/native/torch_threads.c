/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* Uses an allocator as torch does: from threads that Python does not know, which hold a lock meanwhile. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum { kThreadsMax = 16, kBlocks = 8 };

typedef void* allocate_t(ssize_t size, int device, void* stream);
typedef void free_t(void* pointer, ssize_t size, int device, void* stream);

static allocate_t* torch_malloc;
static free_t* torch_free;
static int rounds;
static int fromDriver;
static int faults;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct block {
  unsigned char* memory;
  size_t size;
};

static void release(struct block* block, unsigned char mark) {
  for (size_t at = 0; at < block->size; ++at)
    if (block->memory[at] != mark) {
      __atomic_add_fetch(&faults, 1, __ATOMIC_SEQ_CST);
      break;
    }
  torch_free(block->memory, (ssize_t)block->size, 0, NULL);
  block->memory = NULL;
}

static void* use(void* argument) {
  const unsigned char mark = (unsigned char)(uintptr_t)argument;
  struct block blocks[kBlocks] = {{NULL, 0}};
  unsigned int seed = mark;
  for (int round = 0; round < rounds; ++round) {
    struct block* block = &blocks[rand_r(&seed) % kBlocks];
    pthread_mutex_lock(&lock);
    if (block->memory == NULL) {
      block->size = 1 + (size_t)rand_r(&seed) % 8192;
      block->memory = torch_malloc((ssize_t)block->size, 0, NULL);
      if (block->memory != NULL)
        memset(block->memory, mark, block->size);
      else
        __atomic_add_fetch(&faults, 1, __ATOMIC_SEQ_CST);
    } else {
      release(block, mark);
    }
    pthread_mutex_unlock(&lock);
  }
  for (int i = 0; i < kBlocks; ++i)
    if (blocks[i].memory != NULL) release(&blocks[i], mark);
  return NULL;
}

/* Has `count` threads allocate, write, check and free. The number of faults: no memory, or contents of another thread. */
int useInThreads(allocate_t* allocate, free_t* free_, int count, int each) {
  pthread_t threads[kThreadsMax];
  torch_malloc = allocate;
  torch_free = free_;
  rounds = each;
  faults = 0;
  for (int i = 0; i < count; ++i) pthread_create(&threads[i], NULL, use, (void*)(uintptr_t)(i + 1));
  for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
  return faults;
}

/* A driver: main memory. */
int push(void* context) { return context == NULL; }

int pop(void** context) {
  *context = NULL;
  return 0;
}

int allocate(uint64_t* pointer, size_t size) {
  *pointer = (uint64_t)(uintptr_t)malloc(size);
  __atomic_add_fetch(&fromDriver, 1, __ATOMIC_SEQ_CST);
  return *pointer == 0;
}

int release_(uint64_t pointer) {
  free((void*)(uintptr_t)pointer);
  __atomic_sub_fetch(&fromDriver, 1, __ATOMIC_SEQ_CST);
  return 0;
}

int settle(void) { return 0; }

/* The blocks of the driver that are not free. */
int blocksOfDriver(void) { return fromDriver; }
