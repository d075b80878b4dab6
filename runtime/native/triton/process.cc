// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "process.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "host.h"
#include "python.h"

namespace pyruntime {
namespace {

// Deeper frames of a recursion have no further information.
constexpr int kFramesMax = 64;
// A path, a name and two numbers. Longer lines are cut.
constexpr size_t kLineBytesMax = 1024;
// Signals beyond these have no bit; none of them ends a process that was asked to end.
constexpr int kSignalMax = 63;

void Write(const char* text) {
  // A failed write cannot be reported.
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// The format of newer Python versions.
void WriteFrame(void* address) {
  char line[kLineBytesMax];
  Dl_info place{};
  const bool known = dladdr(address, &place) != 0 && place.dli_fname != nullptr;
  const char* const base = static_cast<char*>(known && place.dli_sname != nullptr ? place.dli_saddr : place.dli_fbase);
  if (known) {
    std::snprintf(
        line, sizeof(line), "  Binary file \"%s\", at %s+0x%tx [%p]\n", place.dli_fname,
        place.dli_sname != nullptr ? place.dli_sname : "", static_cast<char*>(address) - base, address);
  } else {
    std::snprintf(line, sizeof(line), "  <unknown> [%p]\n", address);
  }
  Write(line);
}

// Writes the stack of the thread, then restores the previous handler and raises the signal again.
void OnCrash(int signum) {
  const ProcessSignals& signals = Host::Get().signals();
  for (size_t index = 0; index < kCrashSignals.size(); ++index) {
    if (kCrashSignals[index] == signum) sigaction(signum, &signals.crash_next[index], nullptr);
  }
  void* frames[kFramesMax];
  const int count = backtrace(frames, kFramesMax);
  Write("Current thread's C stack trace (most recent call first):\n");
  for (int index = 0; index < count; ++index) WriteFrame(frames[index]);
  Write("\n");
  raise(signum);
}

PyObject* TraceCrashes(PyObject* /*module*/, PyObject* /*unused*/) {
  ProcessSignals& signals = Host::Get().signals();
  if (signals.traces_crashes) Py_RETURN_NONE;
  signals.traces_crashes = true;
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads its libraries now, because a crash may prevent that
  struct sigaction action {};
  action.sa_handler = OnCrash;
  // Its own stack, if the thread has one; and no wait, where the next one raises the signal again.
  action.sa_flags = SA_NODEFER | SA_ONSTACK;
  for (size_t index = 0; index < kCrashSignals.size(); ++index) {
    sigaction(kCrashSignals[index], &action, &signals.crash_next[index]);
  }
  Py_RETURN_NONE;
}

// A signal that reaches the child before its handler is reset would be lost. So these signals are blocked from before
// the fork until then. This is the previous signal mask of the forking thread.
thread_local sigset_t waiting_before;

sigset_t Chosen() {
  const uint64_t bits = Host::Get().signals().reset_at_fork;
  sigset_t chosen;
  sigemptyset(&chosen);
  for (int signum = 1; signum <= kSignalMax; ++signum) {
    if ((bits >> signum & 1) != 0) sigaddset(&chosen, signum);
  }
  return chosen;
}

void BeforeFork() {
  const sigset_t chosen = Chosen();
  pthread_sigmask(SIG_BLOCK, &chosen, &waiting_before);
}

void AfterFork() { pthread_sigmask(SIG_SETMASK, &waiting_before, nullptr); }

void AfterForkInChild() {
  const sigset_t chosen = Chosen();
  for (int signum = 1; signum <= kSignalMax; ++signum) {
    if (sigismember(&chosen, signum) == 1) signal(signum, SIG_DFL);
  }
  AfterFork();
}

PyObject* ResetAtFork(PyObject* /*module*/, PyObject* number) {
  const long signum = PyLong_AsLong(number);
  if (signum == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (signum < 1 || signum > kSignalMax) {
    PyErr_SetString(PyExc_ValueError, "no such signal");
    return nullptr;
  }
  const uint64_t before = Host::Get().signals().reset_at_fork.fetch_or(uint64_t{1} << signum);
  if (before == 0 && pthread_atfork(BeforeFork, AfterFork, AfterForkInChild) != 0) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

PyMethodDef process_functions[] = {
    {"trace_crashes", Caught<TraceCrashes>, METH_NOARGS, "Have a crash tell where native code was."},
    {"reset_at_fork", Caught<ResetAtFork>, METH_O, "Have a signal kill what native code forks."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool AddProcessFunctions(PyObject* module) { return PyModule_AddFunctions(module, process_functions) == 0; }

}  // namespace pyruntime
