// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A library of custom operations for PyTorch: the operation "scale" of the namespace "test" multiplies by FACTOR.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

#ifndef FACTOR
#define FACTOR 2
#endif

TORCH_LIBRARY(test, library) {
  library.def("scale(Tensor input) -> Tensor", [](const at::Tensor& input) { return at::mul(input, FACTOR); });
}
