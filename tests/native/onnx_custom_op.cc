// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A library of custom operations for ONNX Runtime: the operation "Scale" of the domain "test" multiplies FP32 by FACTOR.
//
// With NEEDS_MISSING it needs a symbol that no version of ONNX Runtime has, with WITHOUT_ENTRY_POINT it has no function
// that ONNX Runtime calls.
#include <cstddef>
#include <cstdint>
#include <vector>

#ifndef FACTOR
#define FACTOR 2
#endif

extern "C" {

struct OrtApiBase {
  const void* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// Version 14 of the structure that ONNX Runtime calls.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const void* api, const void* info);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, void* context);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  void* later_versions[16];  // ONNX Runtime tests some of them for null
};

#ifdef NEEDS_MISSING
void* OrtFunctionOfAnotherVersion();
void* (*needed)() = OrtFunctionOfAnotherVersion;
#endif

}  // extern "C"

namespace {

// Places in the table of version 1 of the API.
enum Function : size_t {
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorShapeElementCount = 64,
  kGetTensorTypeAndShape = 65,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseTensorTypeAndShapeInfo = 99,
};

constexpr uint32_t kApiVersion = 1;
constexpr int kFloat = 1;          // ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
constexpr int kRequired = 0;       // INPUT_OUTPUT_REQUIRED
constexpr int kDefaultMemory = 0;  // OrtMemTypeDefault

void* const* table = nullptr;

// Calls a function that returns a status, which is null after a success.
template <class... Arguments>
void* Ort(Function function, Arguments... arguments) {
  return reinterpret_cast<void* (*)(Arguments...)>(table[function])(arguments...);
}

void Compute(void*, void* context) {
  const void* input = nullptr;
  Ort(kKernelContextGetInput, static_cast<const void*>(context), size_t{0}, &input);
  void* info = nullptr;
  Ort(kGetTensorTypeAndShape, input, &info);
  size_t rank = 0, count = 0;
  Ort(kGetDimensionsCount, static_cast<const void*>(info), &rank);
  Ort(kGetTensorShapeElementCount, static_cast<const void*>(info), &count);
  std::vector<int64_t> shape(rank);
  Ort(kGetDimensions, static_cast<const void*>(info), shape.data(), rank);
  reinterpret_cast<void (*)(void*)>(table[kReleaseTensorTypeAndShapeInfo])(info);
  void* output = nullptr;
  Ort(kKernelContextGetOutput, context, size_t{0}, static_cast<const int64_t*>(shape.data()), rank, &output);
  float *from = nullptr, *to = nullptr;
  Ort(kGetTensorMutableData, const_cast<void*>(input), &from);
  Ort(kGetTensorMutableData, output, &to);
  for (size_t index = 0; index < count; ++index) to[index] = from[index] * FACTOR;
}

const OrtCustomOp kScale = {
    14,
    [](const OrtCustomOp*, const void*, const void*) -> void* { return &table; },
    [](const OrtCustomOp*) { return "Scale"; },
    [](const OrtCustomOp*) -> const char* { return nullptr; },
    [](const OrtCustomOp*, size_t) { return kFloat; },
    [](const OrtCustomOp*) { return size_t{1}; },
    [](const OrtCustomOp*, size_t) { return kFloat; },
    [](const OrtCustomOp*) { return size_t{1}; },
    Compute,
    [](void*) {},
    [](const OrtCustomOp*, size_t) { return kRequired; },
    [](const OrtCustomOp*, size_t) { return kRequired; },
    [](const OrtCustomOp*, size_t) { return kDefaultMemory; },
    [](const OrtCustomOp*) { return 1; },
    [](const OrtCustomOp*) { return 1; },
    [](const OrtCustomOp*) { return 1; },
    [](const OrtCustomOp*) { return 1; },
    {},
};

}  // namespace

#ifdef WITHOUT_ENTRY_POINT
#define RegisterCustomOps RegisterCustomOpsOfAnother
#endif

extern "C" void* RegisterCustomOps(void* options, const OrtApiBase* api) {
  table = static_cast<void* const*>(api->GetApi(kApiVersion));
  void* domain = nullptr;
  void* status = Ort(kCreateCustomOpDomain, "test", &domain);
  if (status == nullptr) status = Ort(kCustomOpDomainAdd, domain, &kScale);
  return status != nullptr ? status : Ort(kAddCustomOpDomain, options, domain);
}
