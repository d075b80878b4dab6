// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of generate requests.
//
//   input := model (1 byte) body

#include "codecs/generate_document.h"

#include <algorithm>
#include <string>

#include "codecs/json_contents.h"
#include "fuzz.h"
#include "requests.h"
#include "strict_json.h"

using fuzz::Check;
using pyruntime::DeclaredModel;
using pyruntime::InferRequest;
using pyruntime::InferTensor;

namespace {

std::string_view ContentsOf(const InferRequest& request, const InferTensor& tensor) {
  return std::string_view(request.contents).substr(tensor.offset, tensor.byte_size);
}

void CheckPlaces(const InferRequest& request) {
  uint64_t end = 0;
  for (const InferTensor& tensor : request.tensors) {
    Check(tensor.made && tensor.offset % pyruntime::kContentsAlignment == 0, "contents are made, and aligned");
    Check(tensor.offset >= end, "contents do not overlap");
    Check(tensor.offset <= request.contents.size() && tensor.byte_size <= request.contents.size() - tensor.offset,
          "contents lie in their memory");
    end = tensor.offset + tensor.byte_size;
  }
}

// The members of the parameters without the id, which is the first one if there is an id.
std::string WriteParameters(const InferRequest& request) {
  if (request.parameters.empty()) return "{}";
  Check(fuzz::StrictJson::IsObject(request.parameters), "parameters are JSON");
  if (request.id.empty()) return request.parameters;
  std::string id = "{";
  fuzz::AddMember("id", fuzz::Quoted(request.id), &id);
  Check(request.parameters.substr(0, id.size()) == id, "the id is the first parameter");
  const size_t next = request.parameters[id.size()] == ',' ? id.size() + 1 : id.size();
  return "{" + request.parameters.substr(next);
}

// What was understood of a request, in the usual form, is read as the request was; unless some contents cannot be
// written.
void CheckRewritten(const DeclaredModel& model, const InferRequest& request) {
  std::string json = "{";
  fuzz::AddMember("id", fuzz::Quoted(request.id), &json);
  for (const InferTensor& tensor : request.tensors) {
    const pyruntime::DeclaredInput& input = model.inputs[tensor.input];
    std::string data = "[";
    if (!pyruntime::AddContents(input.datatype, ContentsOf(request, tensor), fuzz::CountOf(tensor), &data)) return;
    fuzz::AddMember(input.name.c_str(), data + "]", &json);
  }
  fuzz::AddMember("parameters", WriteParameters(request), &json);
  json += "}";
  Check(fuzz::StrictJson::IsObject(json), "what is written is JSON");
  const fuzz::Block block{std::string_view(json)};
  InferRequest again;
  Check(ReadGenerateDocument(model, block.view(), &again), "a request that is written again is one");
  Check(fuzz::AreAlike(request, again) && request.contents == again.contents, "and the same one");
  for (size_t number = 0; number < request.tensors.size(); ++number) {
    const InferTensor &tensor = request.tensors[number], &same = again.tensors[number];
    Check(tensor.input == same.input && tensor.dims == same.dims && tensor.offset == same.offset &&
              std::equal(tensor.shape, tensor.shape + tensor.dims, same.shape),
          "with the same inputs");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const fuzz::Block block(fuzz::ViewOf(data + 1, size - 1));
  const DeclaredModel& model = fuzz::ModelOf(data[0]);
  InferRequest request;
  if (!ReadGenerateDocument(model, block.view(), &request)) return 0;
  fuzz::CheckRequest(model, request);
  CheckPlaces(request);
  fuzz::CheckText(block, request, request.id);
  if (block.view().back() == '}') {
    const fuzz::Block prefix(block.view().substr(0, block.view().size() - 1));
    InferRequest shorter;
    Check(!ReadGenerateDocument(model, prefix.view(), &shorter), "a request that ends early is none");
  }
  CheckRewritten(model, request);
  return 0;
}
