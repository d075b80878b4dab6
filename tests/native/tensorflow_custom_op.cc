// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A library of custom operations for TensorFlow: the operation "TestScale" multiplies FP32 by FACTOR.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

REGISTER_OP("TestScale")
    .Input("input: float")
    .Output("output: float")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    });

namespace {

class Scale : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& input = context->input(0);
    tensorflow::Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    const float* from = static_cast<const float*>(input.data());
    float* to = static_cast<float*>(output->data());
    for (int64_t index = 0; index < input.NumElements(); ++index) to[index] = from[index] * FACTOR;
  }
};

}  // namespace

REGISTER_KERNEL_BUILDER(Name("TestScale").Device(tensorflow::DEVICE_CPU), Scale);
