/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* As much of CUDA's driver as the server and the tests' backends use, as libcuda.so.1. It has two GPUs, of 7.0 and of
 * 8.0, or as many as CUDA_VISIBLE_DEVICES names.
 *
 * Memory of a GPU is main memory that only the driver's own functions can touch: anything else that reads or writes it
 * ends the process. Calls need a current context, that of the GPU that the memory is on, or are refused.
 *
 * Memory that processes share is that of the stand-in, utils/gpu/stand_in.py, which is asked to copy there, in Python.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidDevice = 101, kNoContext = 201 };
/* The first address of the stand-in's memory. */
static const uint64_t kFirstShared = (uint64_t)1 << 52;
enum { kDevicesMax = 2, kBlocksMax = 64, kDepthMax = 8, kFirstDevice = 40 };

/* A block of device memory has two mappings of the same pages: `address`, which nobody may touch, and `contents`. */
struct block {
  uintptr_t address;
  char* contents;
  size_t size;
  int device; /* -1 for pinned memory */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int is_initialized;
static struct block blocks[kBlocksMax];
static int contexts[kDevicesMax];
static __thread int* stack[kDepthMax];
static __thread int depth;

static int device_count(void) {
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible == NULL) return kDevicesMax;
  int count = *visible != '\0';
  for (; *visible != '\0'; ++visible) count += *visible == ',';
  return count < kDevicesMax ? count : kDevicesMax;
}

static int current_device(void) { return depth == 0 ? -1 : (int)(stack[depth - 1] - contexts); }

static struct block* find(uintptr_t address, size_t size) {
  for (int i = 0; i < kBlocksMax; ++i) {
    struct block* block = &blocks[i];
    if (block->size == 0 || address < block->address || address - block->address > block->size) continue;
    if (block->size - (address - block->address) >= size) return block;
  }
  return NULL;
}

int cuInit(unsigned int flags) {
  is_initialized = flags == 0;
  return is_initialized ? kSuccess : kInvalidValue;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == kOutOfMemory     ? "out of memory"
          : error == kInvalidDevice ? "invalid device ordinal"
          : error == kNoContext     ? "invalid device context"
          : error == kInvalidValue  ? "invalid argument"
                                    : NULL;
  return *text != NULL ? kSuccess : kInvalidValue;
}

int cuDeviceGet(int* device, int ordinal) {
  if (!is_initialized) return kNotInitialized;
  if (ordinal < 0 || ordinal >= device_count()) return kInvalidDevice;
  *device = kFirstDevice + ordinal;
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < kFirstDevice || device >= kFirstDevice + kDevicesMax) return kInvalidDevice;
  if (attribute != 75 && attribute != 76) return kInvalidValue;
  *value = attribute == 75 ? device - 33 : 0;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts[device - kFirstDevice];
  __atomic_add_fetch(&contexts[device - kFirstDevice], 1, __ATOMIC_SEQ_CST);
  return kSuccess;
}

int cuCtxGetCurrent(void** context) {
  *context = depth == 0 ? NULL : stack[depth - 1];
  return kSuccess;
}

int cuCtxPushCurrent_v2(void* context) {
  if (context == NULL || *(int*)context == 0 || depth == kDepthMax) return kInvalidValue;
  stack[depth++] = context;
  return kSuccess;
}

int cuCtxPopCurrent_v2(void** context) {
  if (depth == 0) return kNoContext;
  *context = stack[--depth];
  return kSuccess;
}

static int allocate(uintptr_t* address, size_t size, int device) {
  if (device < 0) return kNoContext;
  if (size == 0) return kInvalidValue;
  if (size > (size_t)1 << 32) return kOutOfMemory;
  const int pages = memfd_create("device memory", 0);
  if (pages < 0 || ftruncate(pages, (off_t)size) != 0) return kOutOfMemory;
  char* contents = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, pages, 0);
  void* closed = mmap(NULL, size, PROT_NONE, MAP_SHARED, pages, 0);
  close(pages);
  for (int i = 0; i < kBlocksMax; ++i) {
    if (blocks[i].size != 0) continue;
    *address = (uintptr_t)closed;
    blocks[i] = (struct block){*address, contents, size, device};
    return kSuccess;
  }
  return kOutOfMemory;
}

int cuMemAlloc_v2(uint64_t* address, size_t size) {
  uintptr_t found = 0;
  pthread_mutex_lock(&mutex);
  const int status = allocate(&found, size, current_device());
  pthread_mutex_unlock(&mutex);
  *address = found;
  return status;
}

int cuMemFree_v2(uint64_t address) {
  int status = kInvalidValue;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kBlocksMax; ++i) {
    struct block* block = &blocks[i];
    if (block->size == 0 || block->address != address || block->device != current_device()) continue;
    munmap(block->contents, block->size);
    munmap((void*)block->address, block->size);
    block->size = 0;
    status = kSuccess;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

int cuCtxSynchronize(void) { return depth == 0 ? kNoContext : kSuccess; }

int cuMemHostAlloc(void** memory, size_t size, unsigned int flags) {
  if (depth == 0) return kNoContext;
  if (flags != 1) return kInvalidValue;
  *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *memory != MAP_FAILED ? kSuccess : kOutOfMemory;
}

/* The contents of device memory; null if it is none, or of another GPU than the current one. */
static char* contents_of(uint64_t address, size_t size) {
  pthread_mutex_lock(&mutex);
  const struct block* block = depth == 0 ? NULL : find(address, size);
  char* found = block != NULL && block->device == current_device() ? block->contents + (address - block->address) : NULL;
  pthread_mutex_unlock(&mutex);
  return found;
}

static int is_shared(uint64_t address) { return address >= kFirstShared; }

/* Has the stand-in for the current GPU call a method. Its arguments are an address there, and a buffer of this process. */
static int copy_shared(const char* method, uint64_t address, const void* buffer, size_t size) {
  char code[512];
  snprintf(code, sizeof(code),
           "import ctypes, numpy; from pyruntime.stub.gpus import gpu_of; "
           "gpu_of(%d).%s(%llu, numpy.ctypeslib.as_array((ctypes.c_uint8 * %zu).from_address(%llu)))",
           current_device(), method, (unsigned long long)address, size, (unsigned long long)(uintptr_t)buffer);
  int (*const ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  void (*const release)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
  int (*const run)(const char*, void*) = (int (*)(const char*, void*))dlsym(RTLD_DEFAULT, "PyRun_SimpleStringFlags");
  if (depth == 0 || ensure == NULL || release == NULL || run == NULL) return kNoContext;
  const int state = ensure();
  const int status = run(code, NULL);
  release(state);
  return status == 0 ? kSuccess : kInvalidValue;
}

int cuMemcpyDtoH_v2(void* target, uint64_t address, size_t size) {
  if (is_shared(address)) return copy_shared("read", address, target, size);
  const char* contents = contents_of(address, size);
  if (contents == NULL) return kInvalidValue;
  memcpy(target, contents, size);
  return kSuccess;
}

int cuMemcpyHtoD_v2(uint64_t address, const void* source, size_t size) {
  if (is_shared(address)) return copy_shared("write_by", address, source, size);
  char* contents = contents_of(address, size);
  if (contents == NULL) return kInvalidValue;
  memcpy(contents, source, size);
  return kSuccess;
}

int cuStreamSynchronize(void* stream) { return stream == NULL && depth != 0 ? kSuccess : kInvalidValue; }

/* For tests: the blocks of device memory, and the contexts that are current on the calling thread, one in another. */
int fakeBlocks(void) {
  int count = 0;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kBlocksMax; ++i) count += blocks[i].size != 0;
  pthread_mutex_unlock(&mutex);
  return count;
}

int fakeDepth(void) { return depth; }
