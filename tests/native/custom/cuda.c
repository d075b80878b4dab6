/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* As much of CUDA's driver as is asked for what a GPU is capable of. It has two GPUs, of 7.0 and of 8.0. */
static int is_initialized;

int cuInit(unsigned int flags) {
  is_initialized = flags == 0;
  return is_initialized ? 0 : 1;
}

int cuDeviceGet(int* device, int ordinal) {
  if (!is_initialized) return 3;
  if (ordinal < 0 || ordinal > 1) return 101;
  *device = 40 + ordinal;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 40 || device > 41) return 101;
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 75 ? device - 33 : 0;
  return 0;
}
