// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// NVML on a machine with two GPUs: one that tells everything, and one that tells nothing but its name. INIT and COUNT
// are what its functions return, and OLD is an older version.
#include <stdio.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"

typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
static int devices[2];
static unsigned long long energy = 5000;
static int opened;
int nvmlInit_v2(void) { opened++; return INIT; }
int nvmlShutdown(void) { return --opened; }
#if INIT == 0
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return COUNT; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { *device = &devices[index]; return 0; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
  return snprintf(uuid, length, "GPU-%d", device == &devices[1]) < (int)length ? 0 : 7;
}
int nvmlDeviceGetUtilizationRates(void *device, nvmlUtilization_t *rates) {
  if (device != &devices[0]) return 3;
  rates->gpu = 25; rates->memory = 99;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory) {
  if (device != &devices[0]) return 3;
  memory->total = 80ULL << 30; memory->free = 60ULL << 30; memory->used = 20ULL << 30;
  return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
  *milliwatts = 70500; return device != &devices[0];
}
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned int *milliwatts) {
  *milliwatts = 300000; return device != &devices[0];
}
#if !OLD
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
  if (device != &devices[0]) return 3;
  *millijoules = energy += 1500;
  return 0;
}
#endif
#endif
