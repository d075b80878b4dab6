// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// An extension of OpenVINO: the operation "Scale" of the opset "test" multiplies FP32 by FACTOR.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

#include <memory>
#include <vector>

namespace {

class Scale : public ov::op::Op {
 public:
  OPENVINO_OP("Scale", "test");

  Scale() = default;
  explicit Scale(const ov::OutputVector& inputs) : Op(inputs) { constructor_validate_and_infer_types(); }

  void validate_and_infer_types() override {
    set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
  }

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    return std::make_shared<Scale>(inputs);
  }

  bool visit_attributes(ov::AttributeVisitor&) override { return true; }

  bool has_evaluate() const override { return true; }

  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override {
    outputs[0].set_shape(inputs[0].get_shape());
    const float* from = inputs[0].data<const float>();
    float* to = outputs[0].data<float>();
    for (size_t index = 0; index < inputs[0].get_size(); ++index) to[index] = from[index] * FACTOR;
    return true;
  }
};

}  // namespace

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({std::make_shared<ov::OpExtension<Scale>>()}));
