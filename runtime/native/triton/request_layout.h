// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// The positions of the items in a request from Python, and in a tensor of it: utils/request_codec.py defines them. The
// module shows these orders to Python as REQUEST_FIELDS and TENSOR_FIELDS, and a test compares both definitions.

#pragma once

#include <Python.h>

namespace pyruntime {

enum RequestField : Py_ssize_t {
  kId,
  kCorrelationId,
  kFlags,
  kTimeoutUs,
  kRequestedOutputs,
  kParameters,
  kTensors,
  kTraceContext,
  kPlaces,
  kRequestLength
};
inline constexpr const char* kRequestFields[] = {
    "id", "correlation_id", "flags", "timeout_us", "requested_outputs", "parameters", "tensors", "trace_context",
    "places"};
static_assert(sizeof(kRequestFields) / sizeof(*kRequestFields) == kRequestLength);

enum TensorField : Py_ssize_t {
  kName,
  kDatatype,
  kShape,
  kAddress,
  kByteSize,
  kMemoryKind,
  kDeviceId,
  kTensorLength
};
inline constexpr const char* kTensorFields[] = {
    "name", "datatype", "shape", "address", "byte_size", "memory_kind", "device_id"};
static_assert(sizeof(kTensorFields) / sizeof(*kTensorFields) == kTensorLength);

}  // namespace pyruntime
