// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "execution.h"

#include <time.h>

#include "python.h"

namespace pyruntime {
namespace {

constexpr uint64_t kNsPerS = 1'000'000'000;

PyObject* Number(uint64_t number) { return PyLong_FromUnsignedLongLong(number); }

}  // namespace

uint64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerS + static_cast<uint64_t>(now.tv_nsec);
}

PyObject* ToPython(const Statistics& statistics) {
  return Tuple({PyBool_FromLong(statistics.success ? 1 : 0), Number(statistics.exec_start_ns),
                Number(statistics.compute_start_ns), Number(statistics.compute_end_ns),
                Number(statistics.exec_end_ns)});
}

PyObject* ToPython(const BatchStatistics& statistics) {
  return Tuple({Number(statistics.rows), Number(statistics.exec_start_ns), Number(statistics.compute_start_ns),
                Number(statistics.compute_end_ns), Number(statistics.exec_end_ns)});
}

PyObject* ToPython(const Execution& execution) {
  return Tuple({Number(execution.serial), Number(execution.start_ns), Number(execution.end_ns),
                execution.failed && !execution.reported ? Py_NewRef(Py_False) : ToPython(execution.reported)});
}

}  // namespace pyruntime
