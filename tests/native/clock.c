// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Moves the wall clock of a process by the seconds that the file named in CLOCK_SHIFT holds now, as an 8-byte integer.
// To be preloaded. Clocks that never jump, such as CLOCK_MONOTONIC, are not changed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t none = 0;
static const volatile int64_t* shift = &none;

__attribute__((constructor)) static void OpenShift(void) {
  const char* path = getenv("CLOCK_SHIFT");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* found = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
  if (found != MAP_FAILED) shift = found;
  close(fd);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int status = (int)syscall(SYS_clock_gettime, clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
  return status;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec found;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* now) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (now != NULL) *now = found.tv_sec;
  return found.tv_sec;
}
