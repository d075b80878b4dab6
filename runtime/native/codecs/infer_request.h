// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the body of a plain inference request over HTTP, and checks it against what its model declares.
//
//   body     := document binary*
//   document := {"id"?, "parameters"?, "inputs": [input*], "outputs"?: [output*]}
//   input    := {"name", "shape", "datatype", "parameters": {"binary_data_size"}}
//   output   := {"name", "parameters"?: {"binary_data"?}}
//
// It accepts a request whole or not at all. The reference is frontends/http/kserve_request.py with config/inputs.py:
// what is accepted here means the same there, and what is not may be right or wrong, which the reference says.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pyruntime {

// The most inputs or outputs of a model whose requests are read here: a bit for each.
constexpr size_t kTensorsMax = 64;
// The most dimensions of a tensor. numpy 1 has no arrays of more.
constexpr size_t kDimsMax = 32;
// The longest id, as in inference/intake.py, and the longest name of a sequence, as in Triton, in characters.
constexpr size_t kIdLengthMax = 4096;
constexpr size_t kSequenceNameMax = 128;
// The most elements of a BYTES tensor that are counted here: some tenths of a millisecond's work.
constexpr int64_t kStringsMax = 64 << 10;

// An input that a model declares. -1 in a shape, which includes the batch dimension, is any size.
struct DeclaredInput {
  std::string name;
  std::string datatype;
  int64_t element_bytes;  // 0 for BYTES
  bool required;
  std::vector<int64_t> shape;
};

struct DeclaredModel {
  std::vector<DeclaredInput> inputs;
  std::vector<std::string> outputs;
  int64_t max_batch_size = 0;
};

// A tensor of a request: the number of its input, its shape, and where its contents lie in the body.
struct InferTensor {
  size_t input;
  size_t dims;
  int64_t shape[kDimsMax];
  uint64_t offset;
  uint64_t byte_size;
};

// Texts are views of the body. `outputs` are numbers of outputs, which are all that are asked for if there are none.
struct InferRequest {
  std::string_view id;
  std::string_view sequence_name;
  uint64_t sequence_id = 0;
  bool starts_sequence = false;
  bool ends_sequence = false;
  uint64_t priority = 0;
  uint64_t timeout_us = 0;
  bool binary_outputs = false;
  int64_t rows = 1;
  std::vector<InferTensor> tensors;
  std::vector<size_t> outputs;
};

// `document` is the length of the document at the beginning of the body.
bool ReadInferRequest(const DeclaredModel& model, std::string_view body, size_t document, InferRequest* out);

}  // namespace pyruntime
