// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads a plain ModelInferRequest of gRPC in two steps: the target, so that its model can be found and memory allocated,
// and then all of it, whose contents are copied to that memory, each at the next multiple of kAlignment.
//
// The reference is frontends/grpc/infer_request.py.

#pragma once

#include "infer_request.h"

namespace pyruntime {

// As in utils/arena.py: suits every datatype.
constexpr uint64_t kAlignment = 64;

// `version` is 0 if the request leaves it to the server. `contents_bytes` are what the contents of all inputs take.
struct MessageTarget {
  std::string_view model;
  std::string_view id;
  int64_t version = 0;
  uint64_t contents_bytes = 0;
};

// False for a message that is not plain: see both functions.
bool ReadMessageTarget(std::string_view message, MessageTarget* out);

// `memory` has the size that the target says; nothing of what is there is valid if the result is false.
bool ReadInferMessage(const DeclaredModel& model, std::string_view message, char* memory, uint64_t memory_bytes,
                      InferRequest* out);

}  // namespace pyruntime
