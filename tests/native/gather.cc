// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// Executes all requests of a batch as one: gathers INPUT0 (INT32 or FP32, batched), doubles it, scatters OUTPUT0.
//
// Each response has a parameter "batch", the number of rows that were executed together. A request with another number
// of columns than the first of its batch, or of another type, gets an error.
#include <cstdint>
#include <string>
#include <vector>

#include "common.h"

namespace {

using testing::Error;
using testing::Fail;
using testing::Must;
using testing::Tensor;

struct Part {
  TRITONBACKEND_Response* response = nullptr;
  std::vector<int64_t> shape;
  size_t start = 0;
  size_t size = 0;
  Error error;
};

TRITONSERVER_Error* Gather(TRITONBACKEND_Request* request, Tensor* batch, Part* part) {
  Tensor tensor;
  RETURN_IF_ERROR(testing::ReadInput(request, "INPUT0", &tensor));
  if (tensor.shape.empty() || tensor.shape[0] < 1) return Fail("INPUT0 has no rows");
  const std::vector<int64_t> row(tensor.shape.begin() + 1, tensor.shape.end());
  if (batch->contents.empty()) {
    batch->datatype = tensor.datatype;
    batch->shape = row;
  }
  if (batch->datatype != tensor.datatype || batch->shape != row) return Fail("the rows of a batch must be alike");
  part->shape = tensor.shape;
  part->start = batch->contents.size();
  part->size = tensor.contents.size();
  batch->contents.insert(batch->contents.end(), tensor.contents.begin(), tensor.contents.end());
  return nullptr;
}

template <class Element>
void Double(Tensor* batch) {
  for (size_t index = 0; index < batch->count<Element>(); ++index) batch->as<Element>()[index] *= 2;
}

TRITONSERVER_Error* Scatter(const Tensor& batch, int64_t rows, const Part& part) {
  RETURN_IF_ERROR(testing::WriteOutput(part.response, "OUTPUT0", batch.datatype, part.shape,
                                       batch.contents.data() + part.start, part.size));
  return TRITONBACKEND_ResponseSetIntParameter(part.response, "batch", rows);
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, const uint32_t count) {
  const uint64_t start_ns = testing::NowNs();
  Tensor batch;
  std::vector<Part> parts(count);
  int64_t rows = 0;
  for (uint32_t index = 0; index < count; ++index) {
    Part& part = parts[index];
    Must(TRITONBACKEND_ResponseNew(&part.response, requests[index]));
    part.error.reset(Gather(requests[index], &batch, &part));
    if (part.error == nullptr) rows += part.shape[0];
  }
  const uint64_t compute_start_ns = testing::NowNs();
  if (batch.datatype == TRITONSERVER_TYPE_FP32) {
    Double<float>(&batch);
  } else {
    Double<int32_t>(&batch);
  }
  const uint64_t compute_end_ns = testing::NowNs();
  for (Part& part : parts) {
    if (part.error == nullptr) part.error.reset(Scatter(batch, rows, part));
    Must(TRITONBACKEND_ResponseSend(part.response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, part.error.get()));
  }
  const uint64_t end_ns = testing::NowNs();
  for (uint32_t index = 0; index < count; ++index) {
    Must(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[index], parts[index].error == nullptr, start_ns,
                                                     compute_start_ns, compute_end_ns, end_ns));
    Must(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  if (rows > 0) {
    Must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, static_cast<uint64_t>(rows), start_ns,
                                                          compute_start_ns, compute_end_ns, end_ns));
  }
  return nullptr;
}

}  // extern "C"
