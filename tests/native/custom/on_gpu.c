/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* Version 2: OUT has the values of IN, FP32, twice as large. Prefers memory of its GPU, and takes either both tensors
 * there, or none.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "custom.h"

enum { kSuccess, kInput, kOutput, kMemory, kDriver };
enum { kValuesMax = 16 };

struct gpu {
  int number;
  void* context;
};

/* A function of the driver. */
#define CUDA(name, ...) ((int (*)(__VA_ARGS__))dlsym(dlopen("libcuda.so.1", RTLD_NOW), name))

uint32_t CustomVersion(void) { return 2; }

int CustomInitialize(const CustomInitializeData* data, void** context) {
  struct gpu* gpu = calloc(1, sizeof(*gpu));
  int device = 0;
  gpu->number = data->gpu_device_id;
  *context = gpu;
  if (CUDA("cuInit", unsigned)(0) != 0 || CUDA("cuDeviceGet", int*, int)(&device, gpu->number) != 0) return kDriver;
  return CUDA("cuDevicePrimaryCtxRetain", void**, int)(&gpu->context, device) == 0 ? kSuccess : kDriver;
}

int CustomFinalize(void* context) {
  free(context);
  return kSuccess;
}

const char* CustomErrorString(void* context, int error) {
  (void)context;
  static const char* texts[] = {"", "no such input", "no room for an output", "one tensor on the GPU", "the driver"};
  return error > 0 && error <= kDriver ? texts[error] : NULL;
}

static int twice(
    struct gpu* gpu, CustomPayload* payload, CustomGetNextInputV2Fn_t input_fn, CustomGetOutputV2Fn_t output_fn) {
  CustomMemoryType type = CUSTOM_MEMORY_GPU, output_type = CUSTOM_MEMORY_GPU;
  int64_t id = gpu->number, output_id = gpu->number;
  const void* block = NULL;
  void* content = NULL;
  uint64_t size = 0;
  float values[kValuesMax];
  if (!input_fn(payload->input_context, "IN", &block, &size, &type, &id) || size > sizeof(values)) return kInput;
  int64_t shape[1] = {(int64_t)(size / sizeof(float))};
  if (!output_fn(payload->output_context, "OUT", 1, shape, size, &content, &output_type, &output_id)) return kOutput;
  if (type != output_type || id != output_id) return kMemory;
  if (type == CUSTOM_MEMORY_CPU) {
    memcpy(values, block, size);
  } else if (CUDA("cuMemcpyDtoH_v2", void*, uint64_t, size_t)(values, (uint64_t)(uintptr_t)block, size) != 0) {
    return kDriver;
  }
  for (int64_t i = 0; i < shape[0]; ++i) values[i] *= 2;
  if (type == CUSTOM_MEMORY_CPU) {
    memcpy(content, values, size);
  } else if (CUDA("cuMemcpyHtoD_v2", uint64_t, const void*, size_t)((uint64_t)(uintptr_t)content, values, size) != 0) {
    return kDriver;
  }
  return kSuccess;
}

int CustomExecuteV2(
    void* context, uint32_t payload_cnt, CustomPayload* payloads, CustomGetNextInputV2Fn_t input_fn,
    CustomGetOutputV2Fn_t output_fn) {
  struct gpu* gpu = context;
  void* popped = NULL;
  if (CUDA("cuCtxPushCurrent_v2", void*)(gpu->context) != 0) return kDriver;
  for (uint32_t i = 0; i < payload_cnt; ++i) payloads[i].error_code = twice(gpu, &payloads[i], input_fn, output_fn);
  CUDA("cuCtxPopCurrent_v2", void**)(&popped);
  return kSuccess;
}
