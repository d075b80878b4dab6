// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// How long things took, on the monotonic clock, in nanoseconds.

#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>

namespace pyruntime {

// One request, as the backend reports it.
struct Statistics {
  bool success;
  uint64_t exec_start_ns;
  uint64_t compute_start_ns;
  uint64_t compute_end_ns;
  uint64_t exec_end_ns;
};

// A batch, as the backend reports it.
struct BatchStatistics {
  uint64_t rows;
  uint64_t exec_start_ns;
  uint64_t compute_start_ns;
  uint64_t compute_end_ns;
  uint64_t exec_end_ns;
};

// One call of Execute; `serial` is that of the first request.
struct Execution {
  uint64_t serial;
  uint64_t start_ns;
  uint64_t end_ns;
  std::optional<BatchStatistics> reported;
};

// A request that was a batch of its own, from its arrival to when its response was sent.
struct CountedRequest {
  uint32_t rows;
  uint64_t arrived_ns;
  uint64_t sent_ns;
  Statistics times;
  Execution execution;
};

// The clock that Python's time.monotonic_ns reads, and that backends report by.
uint64_t Now();

// As Python reads them: see _triton.pyi. Null with a Python exception set. With the GIL.
PyObject* ToPython(const Statistics& statistics);
PyObject* ToPython(const BatchStatistics& statistics);
PyObject* ToPython(const Execution& execution);

// None where there is nothing.
template <typename Value>
PyObject* ToPython(const std::optional<Value>& value) {
  return value ? ToPython(*value) : Py_NewRef(Py_None);
}

}  // namespace pyruntime
