// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// What becomes of this process, and of its children, when native code crashes it or forks.

#pragma once

#include <Python.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace pyruntime {

// The signals of a crash: those that Python's faulthandler tells of.
constexpr std::array<int, 5> kCrashSignals = {SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL};

struct ProcessSignals {
  // Who is told of a crash after us: as of kCrashSignals.
  std::array<struct sigaction, kCrashSignals.size()> crash_next{};
  bool traces_crashes = false;  // with the GIL
  // Signals that kill a forked process again, by their bits.
  std::atomic<uint64_t> reset_at_fork{0};
};

// See python.h.
bool AddProcessFunctions(PyObject* module);

}  // namespace pyruntime
