// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads a plain ModelInferRequest of gRPC, of which the id and the raw contents stand apart.
//
// The reference is frontends/grpc/infer_request.py, which knows that the message can be parsed.

#pragma once

#include "infer_request.h"

namespace pyruntime {

// Where raw contents lie in memory, one of them for each input in their order.
struct RawContents {
  uint64_t offset;
  std::string_view bytes;
};

// `message` are all fields but the id and the raw contents. False for a request that is not plain.
bool ReadInferMessage(const DeclaredModel& model, std::string_view message, const std::vector<RawContents>& raws,
                      InferRequest* out);

}  // namespace pyruntime
