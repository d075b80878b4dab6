// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Crashes of this process in native code, and the signals of processes that native code forks.

#pragma once

#include <Python.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace pyruntime {

// The signals of a crash, which are those of Python's faulthandler.
constexpr std::array<int, 5> kCrashSignals = {SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL};

struct ProcessSignals {
  // The previous handlers for kCrashSignals, which are called after ours.
  std::array<struct sigaction, kCrashSignals.size()> crash_next{};
  bool traces_crashes = false;  // with the GIL
  // Signals that have their default action again in a forked process, as bits.
  std::atomic<uint64_t> reset_at_fork{0};
};

// See python.h.
bool AddProcessFunctions(PyObject* module);

}  // namespace pyruntime
