// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Adds up the INPUTs (INT32) of a sequence in a state that the server keeps: INPUT_STATE has the state before a
// request, OUTPUT_STATE the state for the next one. OUTPUT is the sum so far.
#include <cstdint>
#include <cstring>

#include "common.h"

namespace {

using testing::Fail;
using testing::Tensor;

TRITONSERVER_Error* Keep(TRITONBACKEND_Request* request, const Tensor& sum) {
  TRITONBACKEND_State* state = nullptr;
  void* buffer = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t type_id = 0;
  RETURN_IF_ERROR(TRITONBACKEND_StateNew(&state, request, "OUTPUT_STATE", sum.datatype, sum.shape.data(),
                                         static_cast<uint32_t>(sum.shape.size())));
  RETURN_IF_ERROR(TRITONBACKEND_StateBuffer(state, &buffer, sum.contents.size(), &type, &type_id));
  if (type == TRITONSERVER_MEMORY_GPU) return Fail("the test backends know no memory of GPUs");
  std::memcpy(buffer, sum.contents.data(), sum.contents.size());
  return TRITONBACKEND_StateUpdate(state);
}

TRITONSERVER_Error* Answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  Tensor sum;
  Tensor state;
  RETURN_IF_ERROR(testing::ReadInput(request, "INPUT", &sum));
  RETURN_IF_ERROR(testing::ReadInput(request, "INPUT_STATE", &state));
  if (sum.datatype != TRITONSERVER_TYPE_INT32 || sum.shape != state.shape || sum.datatype != state.datatype) {
    return Fail("INPUT and INPUT_STATE must be INT32 and of one shape");
  }
  for (size_t index = 0; index < sum.count<int32_t>(); ++index) {
    sum.as<int32_t>()[index] += state.as<int32_t>()[index];
  }
  RETURN_IF_ERROR(testing::WriteOutput(response, "OUTPUT", sum));
  return Keep(request, sum);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  const bool is_batched = testing::Config(testing::ModelOf(instance)).Number("max_batch_size") > 0;
  testing::ExecuteEach(instance, requests, count, is_batched, Answer);
  return nullptr;
}

}  // extern "C"
