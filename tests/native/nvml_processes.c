// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// NVML on a machine with one GPU, on which the process that asks computes, and process 1. If FOREIGN is 1, it numbers
// processes as another machine does.
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

typedef struct { unsigned int pid; unsigned long long used; unsigned int instance, compute_instance; } nvmlProcessInfo_t;
static int device;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **found) { *found = &device; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *of, unsigned int *count, nvmlProcessInfo_t *processes) {
  if (*count < 2) return 7;
  *count = 2;
  processes[0].pid = FOREIGN ? 1u << 30 : (unsigned int)getpid();
  processes[1].pid = 1;
  return 0;
}
