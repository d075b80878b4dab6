// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "infer_document.h"

#include <algorithm>

#include "json_contents.h"
#include "json_parameter.h"
#include "scanner.h"

namespace pyruntime {
namespace {

class DocumentReader {
 public:
  DocumentReader(const DeclaredModel& model, std::string_view body, size_t document, InferRequest* out)
      : body_(body),
        scanner_(body.data(), body.data() + document, &out->texts),
        position_(document),
        has_binary_(document < body.size()),
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
    out_->AlignContents();
    ChooseBinary();
    return is_read && scanner_.AtEnd() && (seen & 4) != 0 && position_ == body_.size() && builder_.Complete();
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
    return ReadJsonParameter(&scanner_, &value) && builder_.AddParameter(name, value);
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
    Scanner data = scanner_;
    tensor.dims = 0;
    const bool is_read = scanner_.Members([&](std::string_view member) {
      if (member == "name") return Note(&seen, 0) && scanner_.String(&name);
      if (member == "datatype") return Note(&seen, 1) && scanner_.String(&datatype);
      if (member == "shape") return Note(&seen, 2) && scanner_.Elements([&] { return ReadDim(&tensor); });
      if (member == "parameters") return Note(&seen, 3) && ReadSize(&size, &seen);
      if (member == "data") return Note(&seen, 5) && ReadData(datatype, &tensor, &data);
      return false;
    });
    if (!is_read || (seen & 7) != 7) return false;
    // Either of them, and never both.
    if ((seen & 48) == 32) return AddMade(name, datatype, &data, &tensor);
    if ((seen & 48) != 16 || size > body_.size() - position_) return false;
    tensor.offset = position_;
    position_ += size;
    if (!has_binary_) {
      // It is empty, and lies where those in the document do: the body is in no memory of its own.
      tensor.offset = out_->AlignContents();
      tensor.made = true;
      return builder_.AddInput(name, datatype, {}, &tensor);
    }
    return builder_.AddInput(name, datatype, body_.substr(tensor.offset, size), &tensor);
  }

  // Contents as JSON. If their datatype stands behind them, it is only noted where they are.
  bool ReadData(std::string_view datatype, InferTensor* tensor, Scanner* data) {
    tensor->made = !datatype.empty();
    return tensor->made ? MakeContents(datatype, &scanner_, tensor) : scanner_.Skip(data);
  }

  bool MakeContents(std::string_view datatype, Scanner* data, InferTensor* tensor) {
    tensor->offset = out_->AlignContents();
    int64_t count;
    return ReadContents(datatype, data, &out_->contents, &count);
  }

  bool AddMade(std::string_view name, std::string_view datatype, Scanner* data, InferTensor* tensor) {
    if (!tensor->made && !(MakeContents(datatype, data, tensor) && data->AtEnd())) return false;
    tensor->made = true;
    return builder_.AddInput(name, datatype, std::string_view(out_->contents).substr(tensor->offset), tensor);
  }

  bool ReadDim(InferTensor* tensor) {
    uint64_t dim;
    if (tensor->dims == kDimsMax || !scanner_.Unsigned(&dim)) return false;
    tensor->shape[tensor->dims++] = static_cast<int64_t>(dim);
    return true;
  }

  bool ReadSize(uint64_t* size, uint64_t* seen) {
    return scanner_.Members([&](std::string_view name) {
      return name == "binary_data_size" && Note(seen, 4) && scanner_.Unsigned(size);
    });
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
    out_->binary.push_back(is_binary);
    is_default_.push_back((seen & 4) == 0);
    return true;
  }

  bool ReadBinary(bool* is_binary, uint64_t* seen) {
    return scanner_.Members([&](std::string_view name) {
      return name == "binary_data" && Note(seen, 2) && scanner_.Boolean(is_binary);
    });
  }

  // The default may stand behind the outputs in the document.
  void ChooseBinary() {
    std::vector<bool>& binary = out_->binary;
    for (size_t index = 0; index < binary.size(); ++index) {
      if (is_default_[index]) binary[index] = binary_default_;
    }
    out_->binary_outputs = binary.empty() ? binary_default_ : binary[0];
    if (std::find(binary.begin(), binary.end(), !out_->binary_outputs) == binary.end()) binary.clear();
  }

  const std::string_view body_;
  Scanner scanner_;
  size_t position_;
  const bool has_binary_;
  RequestBuilder builder_;
  InferRequest* const out_;
  bool binary_default_ = false;
  // Whether each output is binary only if that is the default.
  std::vector<bool> is_default_;
};

}  // namespace

bool ReadInferDocument(const DeclaredModel& model, std::string_view body, size_t document, InferRequest* out) {
  return document <= body.size() && DocumentReader(model, body, document, out).Read();
}

}  // namespace pyruntime
