// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// A plain inference request, put together from what a reader of a protocol finds, and checked against what its model
// declares. The reference is config/inputs.py: what is accepted here means the same there, and what is not may be right
// or wrong, which the reference says.

#pragma once

#include <cstdint>
#include <forward_list>
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
// The most elements of a BYTES tensor that are counted here, as at once in config/inputs.py: a thread counts more.
constexpr int64_t kStringsMax = 16 << 10;
// How contents are aligned, as in utils/arena.py.
constexpr size_t kContentsAlignment = 64;
// The most parameters of a request that only the model knows: each is compared with all others.
constexpr size_t kParametersMax = 32;

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

// The input of this name, or null.
const DeclaredInput* FindInput(const DeclaredModel& model, std::string_view name);

// A tensor of a request: the number of its input, its shape, and where its contents lie in what was read. If they are
// `made`, it is where they lie in InferRequest::contents.
struct InferTensor {
  size_t input;
  size_t dims;
  int64_t shape[kDimsMax];
  uint64_t offset;
  uint64_t byte_size;
  bool made = false;
};

// Texts are views of what was read, or of `texts`. `outputs` are numbers of outputs, which are all that are asked for if
// there are none.
struct InferRequest {
  std::string_view id;
  std::string_view sequence_name;
  uint64_t sequence_id = 0;
  bool starts_sequence = false;
  bool ends_sequence = false;
  uint64_t priority = 0;
  uint64_t timeout_us = 0;
  bool binary_outputs = false;
  // Whether each of `outputs` is to be binary, if some are and others are not.
  std::vector<bool> binary;
  int64_t rows = 1;
  std::vector<InferTensor> tensors;
  std::vector<size_t> outputs;
  // The members of a JSON object: parameters that only the model knows.
  std::string parameters;
  // The contents of tensors that were not bytes in what was read, each aligned for any datatype.
  std::string contents;
  std::forward_list<std::string> texts;

  // Aligns the end of `contents`, and returns it.
  uint64_t AlignContents() {
    contents.resize((contents.size() + kContentsAlignment - 1) / kContentsAlignment * kContentsAlignment);
    return contents.size();
  }
};

// Notes that something is there. False if it was there before: two readings are possible then.
bool Note(uint64_t* seen, size_t number);

// Each method returns false for what is not as the model declares it, or is there twice.
class RequestBuilder {
 public:
  RequestBuilder(const DeclaredModel& model, InferRequest* request) : model_(model), request_(request) {}

  // A tensor with a shape and an offset, whose contents are these.
  bool AddInput(std::string_view name, std::string_view datatype, std::string_view contents, InferTensor* tensor);
  bool AddOutput(std::string_view name);
  // A parameter that only the model knows. `value` is JSON. Not for a name that Triton reserves.
  bool AddParameter(std::string_view name, std::string_view value);
  // All required inputs are there, and they have one batch size, which the model takes.
  bool Complete();

 private:
  bool HasRequired() const;
  bool CountRows();

  const DeclaredModel& model_;
  InferRequest* const request_;
  // The inputs and outputs that are there, a bit for each.
  uint64_t inputs_ = 0;
  uint64_t outputs_ = 0;
  std::vector<std::string_view> parameters_;
};

}  // namespace pyruntime
