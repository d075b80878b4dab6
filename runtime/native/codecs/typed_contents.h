// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads plain typed contents of an input of gRPC (InferTensorContents), and writes them as a tensor.
//
//   contents := packed numbers | string*      all of one member, which is the one that belongs to the datatype
//
// The reference is native/src/contents.c, which takes members in any number, order and form.

#pragma once

#include <cstdint>
#include <string_view>

namespace pyruntime {

// The size of the contents as a tensor, in bytes. False for what is not plain.
bool MeasureContents(std::string_view datatype, std::string_view contents, uint64_t* byte_size);

// Writes contents that were measured. False for a number that is out of the range of the datatype, or unreadable.
bool WriteContents(std::string_view datatype, std::string_view contents, char* to);

}  // namespace pyruntime
