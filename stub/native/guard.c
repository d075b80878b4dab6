// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Survives the bus errors of guarded mappings. A client may shrink an object that this process has mapped, and an access
// behind its end is a bus error. The handler puts empty memory where the object ended, notes that, and has the access
// made again. A bus error elsewhere is for the handler that was there before, such as faulthandler's.
//
// It uses nothing of Python, so that one library serves stubs of any version; ../guard.py loads it by ctypes and holds the
// GIL in all functions but the handler, which may run in any thread at any time.

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

// The most guarded mappings: the large tensors in client memory that the models of one process hold. The handler looks
// at each.
#define GUARDS_MAX 4096

struct Guard {
  _Atomic uintptr_t begin;  // 0: free
  _Atomic uintptr_t end;
  atomic_int hit;
};

static struct Guard guards[GUARDS_MAX];
static struct sigaction before;
static atomic_int gave_way;  // how often, since the last guard_install
static uintptr_t page_bytes;

// Whether the address is in a guarded mapping, which has empty memory from there on now.
static int Mend(uintptr_t at) {
  for (int i = 0; i < GUARDS_MAX; ++i) {
    const uintptr_t begin = atomic_load(&guards[i].begin);
    const uintptr_t end = atomic_load(&guards[i].end);
    if (begin == 0 || at < begin || at >= end) continue;
    const uintptr_t page = at & ~(page_bytes - 1);
    void* mapped = mmap((void*)page, end - page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    atomic_store(&guards[i].hit, 1);
    return 1;
  }
  return 0;
}

static void OnBusError(int signum, siginfo_t* info, void* context) {
  (void)context;
  const int error = errno;
  const int is_fault = info->si_code > 0;  // and not sent by a process
  if (!is_fault || !Mend((uintptr_t)info->si_addr)) {
    // A fault happens again on return, and is handled as if this library was not there. The handler from before may put
    // this one back, as faulthandler does where it was enabled after an earlier guard: then the process ends.
    const struct sigaction end = {.sa_handler = SIG_DFL};
    sigaction(signum, atomic_fetch_add(&gave_way, 1) == 0 ? &before : &end, NULL);
    if (!is_fault) raise(signum);
  }
  errno = error;
}

// Handles bus errors from now on, before any handler that was installed since the last call. -1 with errno if that fails.
EXPORT int guard_install(void) {
  struct sigaction current;
  if (sigaction(SIGBUS, NULL, &current)) return -1;
  if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == OnBusError) return 0;
  page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
  before = current;
  atomic_store(&gave_way, 0);
  struct sigaction action = {.sa_sigaction = OnBusError, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, NULL);
}

// Guards `size` bytes at `begin`, whole pages; the guard's number, or -1 if there are too many.
EXPORT int guard_add(uintptr_t begin, size_t size) {
  for (int i = 0; i < GUARDS_MAX; ++i) {
    if (atomic_load(&guards[i].begin) != 0) continue;
    atomic_store(&guards[i].hit, 0);
    atomic_store(&guards[i].end, begin + size);
    atomic_store(&guards[i].begin, begin);
    return i;
  }
  return -1;
}

// Whether memory of the mapping was missing.
EXPORT int guard_hit(int number) { return atomic_load(&guards[number].hit); }

// Ends a guard, before its mapping ends.
EXPORT void guard_remove(int number) { atomic_store(&guards[number].begin, 0); }
