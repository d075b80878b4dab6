// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Heads of HTTP requests. The input is the head.

#include <string>
#include <vector>

#include "codecs/http_head.h"
#include "fuzz.h"

using fuzz::Check;
using pyruntime::HttpHead;
using pyruntime::HttpHeader;
using pyruntime::ModelTarget;

namespace {

void CheckParts(const fuzz::Block& block, const HttpHead& head, const std::vector<HttpHeader>& headers) {
  for (const std::string_view part : {head.method, head.target, head.content_encoding, head.accept_encoding,
                                      head.traceparent, head.load_format, head.connection, head.expect}) {
    Check(block.Contains(part), "a part lies in the head");
    Check(part.find_first_of("\r\n") == std::string_view::npos, "a part lies in one line");
  }
  Check(headers.size() <= pyruntime::kHeadersMax, "there are not too many headers");
  for (const HttpHeader& header : headers) {
    Check(block.Contains(header.name) && block.Contains(header.value), "a header lies in the head");
    Check(!header.name.empty() && fuzz::IsPrintable(header.name), "a header has a name");
  }
  Check(head.content_length >= -1 && head.document_length >= -1, "lengths are lengths");
}

void CheckTarget(const fuzz::Block& block, std::string_view target) {
  ModelTarget read, again;
  if (!pyruntime::ReadModelTarget(target, &read)) return;
  Check(block.Contains(read.model) && block.Contains(read.action), "a target lies in the head");
  Check(!read.model.empty() && (read.version == -1 || read.version > 0), "a target has a model");
  std::string written = "/v2/models/" + std::string(read.model) + "/";
  if (read.version != -1) written += "versions/" + std::to_string(read.version) + "/";
  written += read.action;
  Check(pyruntime::ReadModelTarget(written, &again), "a target that is written again is one");
  Check(again.model == read.model && again.version == read.version && again.action == read.action, "and the same one");
}

void CheckEncoding(std::string_view list) {
  std::string_view encoding;
  if (!pyruntime::ReadAcceptEncoding(list, &encoding)) return;
  Check(encoding.empty() || encoding == "gzip" || encoding == "deflate", "an encoding is known");
}

// What was understood of a head, in the usual form, is read as the head was.
void CheckRewritten(const HttpHead& head, const std::vector<HttpHeader>& headers) {
  std::string written = std::string(head.method) + " " + std::string(head.target) + " HTTP/1." + (head.is_old ? "0" : "1") + "\r\n";
  for (const HttpHeader& header : headers) written += std::string(header.name) + ":" + std::string(header.value) + "\r\n";
  written += "\r\n";
  const fuzz::Block block{std::string_view(written)};
  HttpHead again;
  Check(pyruntime::ReadHttpHead(block.view(), &again, nullptr), "a head that is written again is one");
  Check(again.method == head.method && again.target == head.target && again.content_length == head.content_length &&
            again.document_length == head.document_length && again.accept_encoding == head.accept_encoding &&
            again.traceparent == head.traceparent && again.content_encoding == head.content_encoding &&
            again.load_format == head.load_format && again.expect == head.expect && again.Stays() == head.Stays(),
        "and the same one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Block block(fuzz::ViewOf(data, size));
  HttpHead head, same, shorter;
  std::vector<HttpHeader> headers;
  // What is refused may be half read.
  const bool is_read = pyruntime::ReadHttpHead(block.view(), &head, &headers);
  Check(pyruntime::ReadHttpHead(block.view(), &same, nullptr) == is_read, "headers that are not asked for change nothing");
  CheckEncoding(block.view());
  CheckTarget(block, block.view());
  if (!is_read) return 0;
  const fuzz::Block prefix(block.view().substr(0, size - 1));
  Check(!pyruntime::ReadHttpHead(prefix.view(), &shorter, nullptr), "a head that ends early is none");
  CheckParts(block, head, headers);
  CheckTarget(block, head.target);
  CheckEncoding(head.accept_encoding);
  CheckRewritten(head, headers);
  return 0;
}
