// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the body of a plain inference request over HTTP.
//
//   body     := document binary*
//   document := {"id"?, "parameters"?, "inputs": [input*], "outputs"?: [output*]}
//   input    := {"name", "shape", "datatype", "parameters": {"binary_data_size"} | "data": contents}
//   output   := {"name", "parameters"?: {"binary_data"?}}
//
// The reference is frontends/http/kserve_request.py.

#pragma once

#include "infer_request.h"

namespace pyruntime {

// `document` is the length of the document at the beginning of the body. False for a request that is not plain.
bool ReadInferDocument(const DeclaredModel& model, std::string_view body, size_t document, InferRequest* out);

}  // namespace pyruntime
