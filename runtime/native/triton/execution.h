// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Durations and times, on the monotonic clock, in nanoseconds.

#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>

namespace pyruntime {

// The times of one request, as the backend reports them.
struct Statistics {
  bool success;
  uint64_t exec_start_ns;
  uint64_t compute_start_ns;
  uint64_t compute_end_ns;
  uint64_t exec_end_ns;
};

// The times of a batch, as the backend reports them.
struct BatchStatistics {
  uint64_t rows;
  uint64_t exec_start_ns;
  uint64_t compute_start_ns;
  uint64_t compute_end_ns;
  uint64_t exec_end_ns;
};

// One call of Execute; `serial` is the serial of the first request. `failed`: it returned an error.
struct Execution {
  uint64_t serial;
  uint64_t start_ns;
  uint64_t end_ns;
  std::optional<BatchStatistics> reported;
  bool failed = false;
};

// A request that was a batch of its own, from its arrival to the sending of its response.
struct CountedRequest {
  uint32_t rows;
  uint64_t arrived_ns;
  uint64_t sent_ns;
  Statistics times;
  Execution execution;
};

// The clock of Python's time.monotonic_ns, which backends use for their reports.
uint64_t Now();

// The form for Python: see _triton.pyi. Null with a Python exception set. With the GIL.
PyObject* ToPython(const Statistics& statistics);
PyObject* ToPython(const BatchStatistics& statistics);
PyObject* ToPython(const Execution& execution);

// None if there is no value.
template <typename Value>
PyObject* ToPython(const std::optional<Value>& value) {
  return value ? ToPython(*value) : Py_NewRef(Py_None);
}

}  // namespace pyruntime
