// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// NVML on a machine with three GPUs: a whole one, one with two slices of which SLICES are in use, and one that tells
// nothing. INIT is what its first function returns, and OLD is a version from before MIG.
#include <stdio.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wtype-limits"

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
static int devices[3], slice;
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { *device = &devices[index]; return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
  if (device == &devices[2]) return 3;
  return device == &slice ? snprintf(uuid, length, "MIG-1") : snprintf(uuid, length, "GPU-0"), 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
  return device == &slice ? snprintf(name, length, "A100 MIG 1g.5gb") : snprintf(name, length, "A100"), 0;
}
int nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory) {
  memory->total = device == &slice ? 5 : 40; memory->free = memory->total - 1; memory->used = 1;
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  if (device == &slice) return 2;
  *major = 8; *minor = 6;
  return 0;
}
#if !OLD
int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending) {
  *current = *pending = device == &devices[1];
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count) { *count = 2; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **part) {
  *part = &slice;
  return index < SLICES ? 0 : 6;
}
#endif
