// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A library for jax.ffi: the function test_scale multiplies FP32 by FACTOR.
#include <xla/ffi/api/ffi.h>

#include <cstddef>

namespace ffi = xla::ffi;

namespace {

ffi::Error Scale(ffi::Buffer<ffi::F32> in, ffi::ResultBuffer<ffi::F32> out) {
  for (size_t index = 0; index < in.element_count(); ++index)
    out->typed_data()[index] = in.typed_data()[index] * FACTOR;
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(test_scale, Scale,
                              ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
