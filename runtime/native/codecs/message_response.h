// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes a ModelInferResponse of gRPC whose raw contents stand apart, and what a ModelStreamInferResponse has around it.
//
//   response := model version output* id? parameter* (raw-contents)* final?      in fields of protobuf
//   event    := response                                                        in a field of protobuf
//
// The reference is frontends/grpc/infer_response.py, whose bytes these are.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pyruntime {

class ResponseMessage {
 public:
  void Begin(std::string_view model, int64_t version);
  void AddOutput(std::string_view name, std::string_view datatype, const std::vector<int64_t>& shape);
  void AddId(std::string_view id);
  void AddBool(std::string_view name, bool value);
  void AddInteger(std::string_view name, int64_t value);
  void AddDouble(std::string_view name, double value);
  void AddText(std::string_view name, std::string_view value);
  // What stands before raw contents of so many bytes, which follow.
  void BeginContents(uint64_t byte_size);
  // The response is one of a stream: says whether it is the last one to its request.
  void EndEvent(bool is_final);

  // What stands before the contents, one after the other, and behind the last of them, which may be nothing. Call it
  // once.
  const std::vector<std::string>& End();

 private:
  void AddParameter(std::string_view name, std::string_view value);

  std::vector<std::string> texts_ = std::vector<std::string>(1);
  std::string part_;  // of a message in the message
  uint64_t contents_bytes_ = 0;
  bool is_event_ = false;
};

}  // namespace pyruntime
