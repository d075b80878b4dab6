// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of inference requests over HTTP, and the documents of responses with what such requests name.
//
//   input := model (1 byte) size of the binary data (2 bytes, the lowest first) document binary data
//
// So most changes to a document leave the size of what follows it as it is.

#include "codecs/infer_document.h"

#include <algorithm>
#include <string>

#include "codecs/infer_response.h"
#include "codecs/json_contents.h"
#include "fuzz.h"
#include "requests.h"
#include "strict_json.h"

using fuzz::Check;
using pyruntime::DeclaredModel;
using pyruntime::InferRequest;
using pyruntime::InferTensor;

namespace {

constexpr size_t kLeadBytes = 3;

// A request that was accepted, and the body that it was read of.
struct Read {
  const DeclaredModel& model;
  std::string_view body;
  InferRequest request;

  std::string_view ContentsOf(const InferTensor& tensor) const {
    const std::string_view whole = tensor.made ? std::string_view(request.contents) : body;
    Check(tensor.offset <= whole.size() && tensor.byte_size <= whole.size() - tensor.offset, "contents lie in the body");
    return whole.substr(tensor.offset, tensor.byte_size);
  }
};

void CheckPlaces(const Read& read, size_t document) {
  uint64_t binary = document, made = 0;
  for (const InferTensor& tensor : read.request.tensors) {
    read.ContentsOf(tensor);
    if (!tensor.made) {
      Check(tensor.offset == binary, "binary contents follow one another");
      binary += tensor.byte_size;
      continue;
    }
    Check(tensor.offset % pyruntime::kContentsAlignment == 0, "contents are aligned");
    Check(tensor.offset >= made, "contents do not overlap");
    made = tensor.offset + tensor.byte_size;
  }
  Check(binary == read.body.size(), "binary contents are all that follows the document");
}

std::string WriteParameters(const InferRequest& request) {
  std::string json = "{";
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  fuzz::AddMember("binary_data_output", flag(request.binary_outputs), &json);
  fuzz::AddMember("sequence_id", request.sequence_name.empty() ? std::to_string(request.sequence_id) : fuzz::Quoted(request.sequence_name),
            &json);
  fuzz::AddMember("sequence_start", flag(request.starts_sequence), &json);
  fuzz::AddMember("sequence_end", flag(request.ends_sequence), &json);
  fuzz::AddMember("priority", std::to_string(request.priority), &json);
  fuzz::AddMember("timeout", std::to_string(request.timeout_us), &json);
  if (!request.parameters.empty()) {
    Check(fuzz::StrictJson::IsObject(request.parameters), "parameters of the model are JSON");
    json += "," + request.parameters.substr(1, request.parameters.size() - 2);
  }
  return json + "}";
}

// An input whose contents are in the document if they were, and can be.
std::string WriteInput(const Read& read, const InferTensor& tensor, std::string* binary) {
  const pyruntime::DeclaredInput& input = read.model.inputs[tensor.input];
  std::string shape, data, json = "{";
  for (size_t index = 0; index < tensor.dims; ++index) shape += (index > 0 ? "," : "") + std::to_string(tensor.shape[index]);
  fuzz::AddMember("name", fuzz::Quoted(input.name), &json);
  fuzz::AddMember("datatype", fuzz::Quoted(input.datatype), &json);
  fuzz::AddMember("shape", "[" + shape + "]", &json);
  const std::string_view contents = read.ContentsOf(tensor);
  if (tensor.made && pyruntime::AddContents(input.datatype, contents, fuzz::CountOf(tensor), &data)) {
    fuzz::AddMember("data", "[" + data + "]", &json);
  } else {
    fuzz::AddMember("parameters", "{\"binary_data_size\":" + std::to_string(contents.size()) + "}", &json);
    *binary += contents;
  }
  return json + "}";
}

std::string WriteOutputs(const Read& read) {
  std::string json = "[";
  for (size_t index = 0; index < read.request.outputs.size(); ++index) {
    json += (index > 0 ? ",{\"name\":" : "{\"name\":") + fuzz::Quoted(read.model.outputs[read.request.outputs[index]]);
    if (!read.request.binary.empty()) {
      json += read.request.binary[index] ? ",\"parameters\":{\"binary_data\":true}" : ",\"parameters\":{\"binary_data\":false}";
    }
    json += "}";
  }
  return json + "]";
}

// What was understood of a request, in the usual form, is read as the request was.
void CheckRewritten(const Read& read) {
  std::string json = "{", binary, inputs;
  fuzz::AddMember("id", fuzz::Quoted(read.request.id), &json);
  fuzz::AddMember("parameters", WriteParameters(read.request), &json);
  for (const InferTensor& tensor : read.request.tensors) {
    inputs += (inputs.empty() ? "" : ",") + WriteInput(read, tensor, &binary);
  }
  fuzz::AddMember("inputs", "[" + inputs + "]", &json);
  fuzz::AddMember("outputs", WriteOutputs(read), &json);
  json += "}";
  Check(fuzz::StrictJson::IsObject(json), "what is written is JSON");
  const fuzz::Block block{std::string_view(json + binary)};
  Read again{read.model, block.view(), {}};
  Check(ReadInferDocument(read.model, block.view(), json.size(), &again.request), "a request that is written again is one");
  Check(fuzz::AreAlike(read.request, again.request), "and the same one");
  for (size_t number = 0; number < read.request.tensors.size(); ++number) {
    const InferTensor &tensor = read.request.tensors[number], &same = again.request.tensors[number];
    Check(tensor.input == same.input && tensor.dims == same.dims &&
              std::equal(tensor.shape, tensor.shape + tensor.dims, same.shape) &&
              read.ContentsOf(tensor) == again.ContentsOf(same),
          "with the same inputs");
  }
}

// A response that has the inputs for its outputs.
void CheckResponse(const Read& read) {
  pyruntime::InferDocument document;
  Check(document.Begin(read.request.id, "m", 1, read.request.parameters), "a response begins");
  for (const InferTensor& tensor : read.request.tensors) {
    const pyruntime::DeclaredInput& input = read.model.inputs[tensor.input];
    Check(document.BeginOutput(input.name, input.datatype), "a response has outputs");
    for (size_t index = 0; index < tensor.dims; ++index) document.AddDim(tensor.shape[index]);
    document.EndBinary(tensor.byte_size);
  }
  Check(fuzz::StrictJson::IsObject(document.End()), "a response is JSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kLeadBytes) return 0;
  const fuzz::Block block(fuzz::ViewOf(data + kLeadBytes, size - kLeadBytes));
  const std::string_view body = block.view();
  const size_t document = body.size() - std::min<size_t>(body.size(), data[1] | data[2] << 8);
  const DeclaredModel& model = fuzz::ModelOf(data[0]);
  Read read{model, body, {}};
  if (!ReadInferDocument(model, body, document, &read.request)) return 0;
  fuzz::CheckRequest(model, read.request);
  CheckPlaces(read, document);
  fuzz::CheckText(block, read.request, read.request.id);
  fuzz::CheckText(block, read.request, read.request.sequence_name);
  const bool has_binary = document < body.size();
  if (has_binary || body.back() == '}') {
    const fuzz::Block prefix(body.substr(0, body.size() - 1));
    InferRequest shorter;
    Check(!ReadInferDocument(model, prefix.view(), document - (has_binary ? 0 : 1), &shorter),
          "a request that ends early is none");
  }
  CheckRewritten(read);
  CheckResponse(read);
  return 0;
}
