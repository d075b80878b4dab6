// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The trace of a request, as a backend sees it: the activities that it reports, and the context for its own calls. The
// traces themselves are in Python, in runtime/tracing: only their contexts are known here.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "request.h"
#include "triton/core/tritonserver.h"

struct TRITONSERVER_InferenceTrace {
  // The context that came with the request, by which Python finds its trace. Calls with the trace, or with a child of
  // it, pass this on.
  std::string server_context;
  // The context that a backend reads and sets: it is the same if other services can use it, else "".
  std::string context;
  uint64_t id = 0;
  uint64_t parent_id = 0;
  std::string model_name;
  int64_t model_version = 0;
  std::string request_id;
  // The request of the trace, or of the trace that it is a child of. Empty once the request has ended.
  std::weak_ptr<pyruntime::RequestState> request;
  // A request owns its trace; a child belongs to the code that made it.
  bool is_child = false;
};

namespace pyruntime {

// The trace of a request, which owns it, made at the first call; null if the request is not traced.
TRITONSERVER_InferenceTrace* TraceOf(TRITONBACKEND_Request* request);

}  // namespace pyruntime
