// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "infer_document.h"

#include "json_text.h"
#include "scanner.h"

namespace pyruntime {
namespace {

class DocumentReader {
 public:
  DocumentReader(const DeclaredModel& model, std::string_view body, size_t document, InferRequest* out)
      : body_(body),
        scanner_(body.data(), body.data() + document),
        position_(document),
        builder_(model, out),
        out_(out) {}

  bool Read() {
    uint64_t seen = 0;
    const bool is_read = scanner_.Members([&](std::string_view name) {
      if (name == "id") return Note(&seen, 0) && scanner_.String(&out_->id) && out_->id.size() <= kIdLengthMax;
      if (name == "parameters") return Note(&seen, 1) && ReadParameters();
      if (name == "inputs") return Note(&seen, 2) && scanner_.Elements([&] { return ReadInput(); });
      if (name == "outputs") return Note(&seen, 3) && scanner_.Elements([&] { return ReadOutput(); });
      return false;
    });
    return is_read && scanner_.AtEnd() && (seen & 4) != 0 && position_ == body_.size() && builder_.Complete() &&
           ChooseBinary();
  }

 private:
  bool ReadParameters() {
    uint64_t seen = 0;
    return scanner_.Members([&](std::string_view name) {
      if (name == "binary_data_output") return Note(&seen, 0) && scanner_.Boolean(&binary_default_);
      if (name == "sequence_id") return Note(&seen, 1) && ReadSequence();
      if (name == "sequence_start") return Note(&seen, 2) && scanner_.Boolean(&out_->starts_sequence);
      if (name == "sequence_end") return Note(&seen, 3) && scanner_.Boolean(&out_->ends_sequence);
      if (name == "priority") return Note(&seen, 4) && scanner_.Unsigned(&out_->priority);
      if (name == "timeout") return Note(&seen, 5) && scanner_.Unsigned(&out_->timeout_us);
      return ReadOwn(name);
    });
  }

  // A parameter that only the model knows.
  bool ReadOwn(std::string_view name) {
    std::string value;
    const char first = scanner_.Next();
    if (first == '"') {
      std::string_view text;
      if (!scanner_.String(&text) || !AddJsonText(text, &value)) return false;
    } else if (first == 't' || first == 'f') {
      bool flag;
      if (!scanner_.Boolean(&flag)) return false;
      value = flag ? "true" : "false";
    } else {
      uint64_t number;
      if (!scanner_.Unsigned(&number)) return false;
      value = std::to_string(number);
    }
    return builder_.AddParameter(name, value);
  }

  bool ReadSequence() {
    if (scanner_.Next() != '"') return scanner_.Unsigned(&out_->sequence_id);
    return scanner_.String(&out_->sequence_name) && !out_->sequence_name.empty() &&
           out_->sequence_name.size() <= kSequenceNameMax;
  }

  bool ReadInput() {
    std::string_view name, datatype;
    InferTensor tensor;
    uint64_t seen = 0, size = 0;
    tensor.dims = 0;
    const bool is_read = scanner_.Members([&](std::string_view member) {
      if (member == "name") return Note(&seen, 0) && scanner_.String(&name);
      if (member == "datatype") return Note(&seen, 1) && scanner_.String(&datatype);
      if (member == "shape") return Note(&seen, 2) && scanner_.Elements([&] { return ReadDim(&tensor); });
      if (member == "parameters") return Note(&seen, 3) && ReadSize(&size);
      return false;
    });
    if (!is_read || seen != 15 || size > body_.size() - position_) return false;
    tensor.offset = position_;
    position_ += size;
    return builder_.AddInput(name, datatype, body_.substr(tensor.offset, size), &tensor);
  }

  bool ReadDim(InferTensor* tensor) {
    uint64_t dim;
    if (tensor->dims == kDimsMax || !scanner_.Unsigned(&dim)) return false;
    tensor->shape[tensor->dims++] = static_cast<int64_t>(dim);
    return true;
  }

  bool ReadSize(uint64_t* size) {
    uint64_t seen = 0;
    const bool is_read = scanner_.Members([&](std::string_view name) {
      return name == "binary_data_size" && Note(&seen, 0) && scanner_.Unsigned(size);
    });
    return is_read && seen != 0;
  }

  bool ReadOutput() {
    std::string_view name;
    uint64_t seen = 0;
    bool is_binary = false;
    const bool is_read = scanner_.Members([&](std::string_view member) {
      if (member == "name") return Note(&seen, 0) && scanner_.String(&name);
      if (member == "parameters") return Note(&seen, 1) && ReadBinary(&is_binary, &seen);
      return false;
    });
    if (!is_read || (seen & 1) == 0) return false;
    if (!builder_.AddOutput(name)) return false;
    if ((seen & 4) == 0) ++by_default_;
    else if (is_binary) ++binary_;
    return true;
  }

  bool ReadBinary(bool* is_binary, uint64_t* seen) {
    return scanner_.Members([&](std::string_view name) {
      return name == "binary_data" && Note(seen, 2) && scanner_.Boolean(is_binary);
    });
  }

  // All outputs are binary, or none is. The default may stand behind the outputs in the document.
  bool ChooseBinary() {
    const size_t binary = binary_ + (binary_default_ ? by_default_ : 0);
    out_->binary_outputs = out_->outputs.empty() ? binary_default_ : binary != 0;
    return out_->outputs.empty() || binary == 0 || binary == out_->outputs.size();
  }

  const std::string_view body_;
  Scanner scanner_;
  size_t position_;
  RequestBuilder builder_;
  InferRequest* const out_;
  bool binary_default_ = false;
  size_t by_default_ = 0;
  size_t binary_ = 0;
};

}  // namespace

bool ReadInferDocument(const DeclaredModel& model, std::string_view body, size_t document, InferRequest* out) {
  return document <= body.size() && DocumentReader(model, body, document, out).Read();
}

}  // namespace pyruntime
