// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "generate_document.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "json_contents.h"
#include "json_parameter.h"
#include "scanner.h"

namespace pyruntime {
namespace {

// Sets the shape that so many elements have: the last variable dimension takes what the fixed ones leave, others are 1.
// False if there is none.
bool Fill(const std::vector<int64_t>& declared, int64_t count, InferTensor* tensor) {
  int64_t fixed = 1;
  for (const int64_t dim : declared) {
    if (dim != -1 && __builtin_mul_overflow(fixed, dim, &fixed)) return false;
  }
  if (fixed <= 0 || count % fixed != 0) return false;
  int64_t left = count / fixed;
  tensor->dims = declared.size();
  for (size_t index = declared.size(); index-- > 0;) {
    tensor->shape[index] = declared[index] == -1 ? std::exchange(left, 1) : declared[index];
  }
  return left == 1;
}

class GenerateReader {
 public:
  GenerateReader(const DeclaredModel& model, std::string_view body, InferRequest* out)
      : model_(model), scanner_(body.data(), body.data() + body.size(), &out->texts), builder_(model, out), out_(out) {}

  bool Read() {
    uint64_t seen = 0;
    const bool is_read = scanner_.Members([&](std::string_view name) {
      if (name == "id") return Note(&seen, 0) && scanner_.String(&out_->id) && out_->id.size() <= kIdLengthMax;
      if (name == "parameters") return Note(&seen, 1) && ReadNested();
      const DeclaredInput* input = FindInput(model_, name);
      return input == nullptr ? ReadParameter(name, &parameters_) : ReadInput(*input);
    });
    out_->AlignContents();
    return is_read && scanner_.AtEnd() && AddParameters() && builder_.Complete();
  }

 private:
  // Names, and values as JSON.
  using Parameters = std::vector<std::pair<std::string_view, std::string>>;

  bool ReadNested() {
    return scanner_.Members([&](std::string_view name) {
      return FindInput(model_, name) == nullptr && ReadParameter(name, &nested_);
    });
  }

  bool ReadParameter(std::string_view name, Parameters* parameters) {
    if (parameters->size() == kParametersMax) return false;
    return ReadJsonParameter(&scanner_, &parameters->emplace_back(name, std::string()).second);
  }

  bool ReadInput(const DeclaredInput& input) {
    InferTensor tensor;
    int64_t count = 1;
    tensor.made = true;
    tensor.offset = out_->AlignContents();
    const bool is_read = scanner_.Next() == '['
                             ? ReadContents(input.datatype, &scanner_, &out_->contents, &count)
                             : ReadElement(input.datatype, &scanner_, &out_->contents);
    return is_read && Fill(input.shape, count, &tensor) &&
           builder_.AddInput(input.name, input.datatype, std::string_view(out_->contents).substr(tensor.offset), &tensor);
  }

  // All that the model gets, in the order of the reference: the id is one of them, and nested ones come last.
  bool AddParameters() {
    if (!out_->id.empty()) {
      std::string id;
      if (!AddJsonText(out_->id, &id) || !builder_.AddParameter("id", id)) return false;
    }
    const auto add = [&](const auto& each) { return builder_.AddParameter(each.first, each.second); };
    return std::all_of(parameters_.begin(), parameters_.end(), add) && std::all_of(nested_.begin(), nested_.end(), add);
  }

  const DeclaredModel& model_;
  Scanner scanner_;
  RequestBuilder builder_;
  InferRequest* const out_;
  Parameters parameters_;
  Parameters nested_;
};

}  // namespace

bool ReadGenerateDocument(const DeclaredModel& model, std::string_view body, InferRequest* out) {
  return GenerateReader(model, body, out).Read();
}

}  // namespace pyruntime
