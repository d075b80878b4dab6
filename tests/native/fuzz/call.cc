// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Heads of calls of gRPC. The input is the packed headers.

#include <string>

#include "codecs/call_head.h"
#include "fuzz.h"

using fuzz::Check;
using pyruntime::CallHead;

namespace {

void CheckRewritten(const CallHead& head) {
  const std::string_view fields[][2] = {{":method", "POST"},
                                        {":path", head.path},
                                        {"content-type", "application/grpc"},
                                        {"grpc-encoding", head.encoding},
                                        {"traceparent", head.traceparent}};
  std::string written;
  for (const auto& [name, value] : fields) {
    if (value.empty()) continue;
    written.append(name).append(1, '\0').append(value).append(1, '\0');
  }
  const fuzz::Block block{std::string_view(written)};
  CallHead again;
  Check(ReadCallHead(block.view(), &again), "a call that is written again is one");
  Check(again.path == head.path && again.encoding == head.encoding && again.traceparent == head.traceparent,
        "and the same one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Block block(fuzz::ViewOf(data, size));
  CallHead head, shorter;
  if (!ReadCallHead(block.view(), &head)) return 0;
  for (const std::string_view part : {head.path, head.encoding, head.traceparent}) {
    Check(block.Contains(part) && fuzz::IsPrintable(part), "a part lies in the head, and can be printed");
  }
  Check(!head.path.empty(), "a call has a path");
  const fuzz::Block prefix(block.view().substr(0, size - 1));
  Check(!ReadCallHead(prefix.view(), &shorter), "headers that end early are none");
  CheckRewritten(head);
  return 0;
}
