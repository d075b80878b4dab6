// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The trace of a request, as a backend sees it: what it reports of it, and what it gives to the requests that it makes
// in turn. The traces themselves are Python's, in runtime/tracing: one that is known here has only a context there.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "request.h"
#include "triton/core/tritonserver.h"

struct TRITONSERVER_InferenceTrace {
  // By what Python finds its own: the context that came with the request. A call that is made with a trace, or with a
  // child of it, goes with this.
  std::string server_context;
  // What a backend reads and sets: the context if other services know what to do with it, else "".
  std::string context;
  uint64_t id = 0;
  uint64_t parent_id = 0;
  std::string model_name;
  int64_t model_version = 0;
  std::string request_id;
  // The request that the trace, or the one that it is a child of, belongs to. Empty once that is over.
  std::weak_ptr<pyruntime::RequestState> request;
  // A request's own trace goes with it; a child belongs to whoever it was made for.
  bool is_child = false;
};

namespace pyruntime {

// The trace of a request, which belongs to it and is made when it is asked for; null if it is not traced.
TRITONSERVER_InferenceTrace* TraceOf(TRITONBACKEND_Request* request);

}  // namespace pyruntime
