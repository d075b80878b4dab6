// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages ModelInferRequest of gRPC, and responses with what they name.
//
//   input := model (1 byte) message

#include "codecs/infer_message.h"

#include <algorithm>
#include <string>
#include <vector>

#include "codecs/message_response.h"
#include "codecs/wire.h"
#include "fuzz.h"
#include "requests.h"
#include "strict_json.h"

using fuzz::Check;
using pyruntime::DeclaredModel;
using pyruntime::InferRequest;
using pyruntime::InferTensor;
using pyruntime::MessageTarget;
using pyruntime::WireField;

namespace {

// The fields of messages, by their numbers: what an input and an output have alike, a request, and a response.
enum { kName = 1, kDatatype = 2, kShape = 3 };
enum { kOfModel = 1, kOfInputs = 5, kOfOutputs = 6, kOfRaws = 7 };
enum { kOutputs = 5, kContents = 6 };

void CheckPlaces(const InferRequest& request, uint64_t memory_bytes) {
  uint64_t end = 0;
  for (const InferTensor& tensor : request.tensors) {
    Check(tensor.offset % pyruntime::kAlignment == 0, "contents are aligned");
    Check(tensor.offset >= end && tensor.offset - end < pyruntime::kAlignment, "contents follow one another");
    Check(!tensor.made, "contents are in the memory");
    end = tensor.offset + tensor.byte_size;
  }
  Check(end == memory_bytes, "contents fill the memory");
}

std::string WriteInput(const pyruntime::DeclaredInput& input, const InferTensor& tensor) {
  std::string written, dims;
  for (size_t index = 0; index < tensor.dims; ++index) pyruntime::AddVarint(static_cast<uint64_t>(tensor.shape[index]), &dims);
  pyruntime::AddBytesField(kName, input.name, &written);
  pyruntime::AddBytesField(kDatatype, input.datatype, &written);
  pyruntime::AddBytesField(kShape, dims, &written);
  return written;
}

// The inputs and outputs of a request, with raw contents, are read as they were.
void CheckRewritten(const DeclaredModel& model, const InferRequest& request, const fuzz::Block& memory) {
  std::string written;
  pyruntime::AddBytesField(kOfModel, "m", &written);
  for (const InferTensor& tensor : request.tensors) {
    pyruntime::AddBytesField(kOfInputs, WriteInput(model.inputs[tensor.input], tensor), &written);
    pyruntime::AddBytesField(kOfRaws, memory.view().substr(tensor.offset, tensor.byte_size), &written);
  }
  for (const size_t number : request.outputs) {
    std::string output;
    pyruntime::AddBytesField(kName, model.outputs[number], &output);
    pyruntime::AddBytesField(kOfOutputs, output, &written);
  }
  MessageTarget target;
  InferRequest again;
  const fuzz::Block block{std::string_view(written)}, place(memory.view().size());
  Check(ReadMessageTarget(block.view(), &target) && target.contents_bytes == memory.view().size(), "contents have one size");
  Check(ReadInferMessage(model, block.view(), place.data(), target.contents_bytes, &again),
        "a request that is written again is one");
  Check(again.outputs == request.outputs && again.rows == request.rows && place.view() == memory.view(),
        "and the same one");
}

// A response that has the inputs for its outputs: its fields, and their contents, are there as they were written.
void CheckResponse(const DeclaredModel& model, const InferRequest& request, const fuzz::Block& memory) {
  pyruntime::ResponseMessage response;
  response.Begin("m", 1);
  for (const InferTensor& tensor : request.tensors) {
    const pyruntime::DeclaredInput& input = model.inputs[tensor.input];
    response.AddOutput(input.name, input.datatype, {tensor.shape, tensor.shape + tensor.dims});
  }
  for (const InferTensor& tensor : request.tensors) response.BeginContents(tensor.byte_size);
  const std::vector<std::string>& parts = response.End();
  Check(parts.size() == request.tensors.size() + 1, "each output has a place");
  std::string whole;
  size_t output = 0, contents = 0;
  for (size_t number = 0; number < parts.size(); ++number) {
    whole += parts[number];
    if (number == request.tensors.size()) break;
    whole += memory.view().substr(request.tensors[number].offset, request.tensors[number].byte_size);
  }
  const bool is_read = pyruntime::ForEachField(whole, [&](const WireField& field) {
    if (field.number == kOutputs) {
      const InferTensor& tensor = request.tensors[output++];
      std::string written = WriteInput(model.inputs[tensor.input], tensor);
      // Protobuf leaves out what is empty.
      if (tensor.dims == 0) written.resize(written.size() - 2);
      return field.bytes == written;
    }
    if (field.number != kContents) return true;
    const InferTensor& tensor = request.tensors[contents++];
    return field.bytes == memory.view().substr(tensor.offset, tensor.byte_size);
  });
  Check(is_read && output == request.tensors.size() && contents == output, "a response has all outputs");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const fuzz::Block block(fuzz::ViewOf(data + 1, size - 1));
  const std::string_view message = block.view();
  const DeclaredModel& model = fuzz::ModelOf(data[0]);
  MessageTarget target;
  if (!ReadMessageTarget(message, &target)) return 0;
  Check(block.Contains(target.model) && block.Contains(target.id) && target.version >= 0, "a target lies in the message");
  Check(target.contents_bytes <= pyruntime::kAlignment * message.size(), "a message takes no more memory than it proves");
  const fuzz::Block memory(target.contents_bytes);
  InferRequest request;
  if (!ReadInferMessage(model, message, memory.data(), target.contents_bytes, &request)) return 0;
  fuzz::CheckRequest(model, request);
  CheckPlaces(request, target.contents_bytes);
  Check(block.Contains(request.sequence_name), "the name of a sequence lies in the message");
  Check(request.parameters.empty() || fuzz::StrictJson::IsObject(request.parameters), "parameters of the model are JSON");
  if (target.contents_bytes > 0) {
    const fuzz::Block shorter(target.contents_bytes - 1);
    InferRequest other;
    Check(!ReadInferMessage(model, message, shorter.data(), target.contents_bytes - 1, &other), "too little memory is a miss");
  }
  CheckRewritten(model, request, memory);
  CheckResponse(model, request, memory);
  return 0;
}
