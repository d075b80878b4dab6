// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// The models whose requests are read, and what holds for all requests that are accepted.
// tests/runtime/native/test_codecs_corpus.py has the same models in the same order.
#ifndef PYRUNTIME_TESTS_NATIVE_FUZZ_REQUESTS_H_
#define PYRUNTIME_TESTS_NATIVE_FUZZ_REQUESTS_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/infer_request.h"
#include "codecs/json_text.h"
#include "fuzz.h"

namespace fuzz {

inline std::vector<pyruntime::DeclaredInput> EveryDatatype() {
  std::vector<pyruntime::DeclaredInput> inputs;
  const auto add = [&](const char* name, int64_t bytes) { inputs.push_back({name, name, bytes, false, {-1, -1}}); };
  for (const char* name : {"BOOL", "INT8", "UINT8"}) add(name, 1);
  for (const char* name : {"INT16", "UINT16", "FP16", "BF16"}) add(name, 2);
  for (const char* name : {"INT32", "UINT32", "FP32"}) add(name, 4);
  for (const char* name : {"INT64", "UINT64", "FP64"}) add(name, 8);
  add("BYTES", 0);
  return inputs;
}

inline const pyruntime::DeclaredModel& ModelOf(uint8_t choice) {
  static const pyruntime::DeclaredModel models[] = {
      {{{"FLOATS", "FP32", 4, true, {-1, -1}}, {"FIXED", "INT8", 1, false, {-1, 2}}, {"TEXTS", "BYTES", 0, false, {-1, -1}}},
       {"Y", "Z"},
       4},
      {{{"FLOATS", "FP32", 4, true, {-1}}, {"TEXTS", "BYTES", 0, true, {-1}}}, {"Y", "Z"}, 0},
      {EveryDatatype(), {}, 0},
  };
  return models[choice % (sizeof models / sizeof *models)];
}

inline int64_t CountOf(const pyruntime::InferTensor& tensor) {
  int64_t count = 1;
  for (size_t index = 0; index < tensor.dims; ++index) {
    Check(!__builtin_mul_overflow(count, tensor.shape[index], &count), "a shape has a number of elements");
  }
  return count;
}

inline void CheckTensor(const pyruntime::DeclaredModel& model, const pyruntime::InferTensor& tensor) {
  Check(tensor.input < model.inputs.size(), "an input is a declared one");
  const pyruntime::DeclaredInput& input = model.inputs[tensor.input];
  Check(tensor.dims == input.shape.size(), "an input has its dimensions");
  for (size_t index = 0; index < tensor.dims; ++index) {
    Check(tensor.shape[index] >= 0, "no dimension is negative");
    Check(input.shape[index] == -1 || input.shape[index] == tensor.shape[index], "a fixed dimension is the declared one");
  }
  const auto count = static_cast<uint64_t>(CountOf(tensor));
  if (input.element_bytes == 0) Check(tensor.byte_size / 4 >= count, "each string has a length");
  else Check(tensor.byte_size == count * static_cast<uint64_t>(input.element_bytes), "contents fill their shape");
}

// Numbers below `limit`, none of them twice.
inline void CheckOnce(const std::vector<size_t>& numbers, size_t limit) {
  std::vector<bool> seen(limit);
  for (const size_t number : numbers) {
    Check(number < limit && !seen[number], "what is named is declared, and named once");
    seen[number] = true;
  }
}

// All but where contents lie.
inline void CheckRequest(const pyruntime::DeclaredModel& model, const pyruntime::InferRequest& request) {
  std::vector<size_t> inputs;
  std::vector<bool> is_there(model.inputs.size());
  for (const pyruntime::InferTensor& tensor : request.tensors) {
    CheckTensor(model, tensor);
    inputs.push_back(tensor.input);
    is_there[tensor.input] = true;
    if (model.max_batch_size > 0) Check(tensor.shape[0] <= model.max_batch_size, "a batch is not too large");
    if (model.max_batch_size > 0) Check(tensor.shape[0] == request.tensors[0].shape[0], "inputs have one batch size");
  }
  for (size_t number = 0; number < model.inputs.size(); ++number) {
    Check(is_there[number] || !model.inputs[number].required, "what is required is there");
  }
  CheckOnce(inputs, model.inputs.size());
  CheckOnce(request.outputs, model.outputs.size());
  Check(request.binary.empty() || request.binary.size() == request.outputs.size(), "each output has a way, or none has");
  Check(request.rows >= 1, "a batch has rows");
  Check(request.sequence_name.empty() || request.sequence_id == 0, "a sequence has a name or a number");
}

inline void CheckText(const Block& block, const pyruntime::InferRequest& request, std::string_view text) {
  std::string json;
  Check(pyruntime::AddJsonText(text, &json), "a text is UTF-8");
  if (block.Contains(text)) return;
  const bool is_own = std::any_of(request.texts.begin(), request.texts.end(), [&](const std::string& each) {
    return text.data() >= each.data() && text.data() + text.size() <= each.data() + each.size();
  });
  Check(is_own, "a text lies in the body, or was made");
}

// Writes a member of a JSON object that has members before.
inline void AddMember(const char* name, std::string_view json, std::string* out) {
  *out += std::string(out->back() == '{' ? "\"" : ",\"") + name + "\":";
  *out += json;
}

inline std::string Quoted(std::string_view text) {
  std::string json;
  Check(pyruntime::AddJsonText(text, &json), "a text is UTF-8");
  return json;
}

inline bool AreAlike(const pyruntime::InferRequest& one, const pyruntime::InferRequest& other) {
  return one.id == other.id && one.sequence_name == other.sequence_name && one.sequence_id == other.sequence_id &&
         one.starts_sequence == other.starts_sequence && one.ends_sequence == other.ends_sequence &&
         one.priority == other.priority && one.timeout_us == other.timeout_us && one.rows == other.rows &&
         one.outputs == other.outputs && one.binary == other.binary && one.parameters == other.parameters &&
         one.binary_outputs == other.binary_outputs && one.tensors.size() == other.tensors.size();
}

}  // namespace fuzz

#endif  // PYRUNTIME_TESTS_NATIVE_FUZZ_REQUESTS_H_
