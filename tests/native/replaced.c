/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 * A library with code, constants, data and a neighbour, which its runpath names, and with a thread of its own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

int neighbour(int number);

/* Pages that nobody looks at before a test does. */
static const char constants[1 << 16] = {[1 << 15] = FACTOR};
static char data[1 << 16] = {[1 << 15] = FACTOR};
static volatile long turns;
static volatile int ends;
static pthread_t thread;

static void* turn(void* unused) {
  (void)unused;
  while (!ends) ++turns;
  return 0;
}

__attribute__((constructor)) static void begin(void) { pthread_create(&thread, 0, turn, 0); }

/* FACTOR * number, by each section, plus what the neighbour makes of it. */
int scaled(int number) {
  data[0] = 1;
  return constants[1 << 15] * number * 100 + data[1 << 15] * number * 10 + neighbour(number);
}

long turnsOfThread(void) { return turns; }

int endThread(void) {
  ends = 1;
  return pthread_join(thread, 0);
}

/* The path by which the library finds what lies beside it. */
int ownPath(char* path, int size) {
  Dl_info found;
  if (dladdr((void*)scaled, &found) == 0) return 0;
  strncpy(path, found.dli_fname, size);
  return 1;
}
