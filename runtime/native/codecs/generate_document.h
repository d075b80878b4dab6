// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the body of a plain generate request.
//
//   body := {"id"?, "parameters"?: {<parameter>*}, (<input> | <parameter>)*}
//
// A member with the name of one of the model's inputs is that input: one element, or a list of them. The reference is
// frontends/http/generate_request.py, which takes inputs among the nested members and parameters that are no scalars, too.

#pragma once

#include <string_view>

#include "infer_request.h"

namespace pyruntime {

// False for a request that is not plain.
bool ReadGenerateDocument(const DeclaredModel& model, std::string_view body, InferRequest* out);

}  // namespace pyruntime
