// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "call_head.h"

namespace pyruntime {
namespace {

// Takes a text from the beginning, without the NUL at its end.
bool TakeText(std::string_view* rest, std::string_view* text) {
  const size_t end = rest->find('\0');
  if (end == std::string_view::npos) return false;
  *text = rest->substr(0, end);
  rest->remove_prefix(end + 1);
  return true;
}

// A value that is there once, and is printable ASCII.
bool TakeOnce(std::string_view value, std::string_view* out) {
  if (!out->empty() || value.empty()) return false;
  for (const char each : value) {
    if (each < 0x20 || each > 0x7e) return false;
  }
  *out = value;
  return true;
}

// All other headers have no effect. `method` and `kind` are those of the call so far.
bool TakeHeader(std::string_view name, std::string_view value, std::string_view* method, std::string_view* kind,
                CallHead* out) {
  if (name == ":path") return TakeOnce(value, &out->path);
  if (name == ":method") return TakeOnce(value, method);
  if (name == "content-type") return TakeOnce(value, kind);
  if (name == "grpc-encoding") return TakeOnce(value, &out->encoding);
  if (name == "traceparent") return TakeOnce(value, &out->traceparent);
  return name != "endpoint-load-metrics-format";
}

}  // namespace

bool ReadCallHead(std::string_view packed, CallHead* out) {
  std::string_view name, value, method, kind;
  while (!packed.empty()) {
    if (!TakeText(&packed, &name) || !TakeText(&packed, &value)) return false;
    if (!TakeHeader(name, value, &method, &kind, out)) return false;
  }
  const bool is_known = out->encoding.empty() || out->encoding == "identity" || out->encoding == "gzip" ||
                        out->encoding == "deflate";
  return is_known && method == "POST" && !out->path.empty() &&
         (kind == "application/grpc" || kind == "application/grpc+proto");
}

}  // namespace pyruntime
