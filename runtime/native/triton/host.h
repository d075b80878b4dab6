// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// State of the C interface that its functions do not get as an argument: TRITONSERVER_LogMessage, for example, has no
// handle. There is one object, for the life of the process.

#pragma once

#include <Python.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "buffer.h"
#include "memory_pools.h"
#include "metrics.h"
#include "process.h"
#include "queue.h"

namespace pyruntime {

class Host {
 public:
  // Made at its first use and never destroyed: threads of backends may outlive everything else.
  static Host& Get();

  EventQueue& queue() { return queue_; }
  BufferPool& buffers() { return buffers_; }
  MemoryPools& pools() { return pools_; }
  MetricRegistry& metrics() { return metrics_; }
  ProcessSignals& signals() { return signals_; }

  // A new number for a trace.
  uint64_t NextTraceId() { return ++last_trace_id_; }

  // The levels that are logged, set by Python: 0 error, 1 warning, 2 info, as bits; and the verbose level.
  std::atomic<unsigned> log_levels{7};
  std::atomic<int> log_verbose{0};
  // Messages that wait for Python, and those that were dropped because too many waited.
  std::atomic<unsigned> log_waiting{0};
  std::atomic<unsigned> log_lost{0};

  // The limits for responses ahead of the client of a request, set by Python: see response_window.h.
  std::atomic<size_t> responses_ahead_max{std::numeric_limits<size_t>::max()};
  std::atomic<size_t> bytes_ahead_max{std::numeric_limits<size_t>::max()};

  // Python's types that are needed in several files. Set once, when the module is made; with the GIL.
  PyTypeObject* buffer_type = nullptr;
  PyTypeObject* view_type = nullptr;
  PyTypeObject* output_region_type = nullptr;
  PyTypeObject* backend_type = nullptr;
  PyTypeObject* model_type = nullptr;
  PyTypeObject* agent_type = nullptr;
  PyTypeObject* plain_requests_type = nullptr;
  PyTypeObject* client_socket_type = nullptr;
  PyTypeObject* lent_connection_type = nullptr;
  PyObject* native_error = nullptr;

 private:
  EventQueue queue_;
  BufferPool buffers_{std::make_unique<HeapBlocks>()};
  MemoryPools pools_;
  MetricRegistry metrics_;
  ProcessSignals signals_;
  std::atomic<uint64_t> last_trace_id_{0};
};

}  // namespace pyruntime
