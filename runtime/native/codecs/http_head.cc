// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "http_head.h"

#include <cstring>

namespace pyruntime {
namespace {

constexpr std::string_view kVersion = " HTTP/1.1", kOldVersion = " HTTP/1.0";
// Fewer digits than the largest number has.
constexpr size_t kDigitsMax = 18;

bool IsAlphanumeric(char each) {
  return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9');
}

// RFC 9110, section 5.6.2.
bool IsOfToken(char each) {
  return IsAlphanumeric(each) || (each != '\0' && std::strchr("!#$%&'*+-.^_`|~", each) != nullptr);
}

bool IsOfTarget(char each) { return IsAlphanumeric(each) || (each != '\0' && std::strchr("/._-~%", each) != nullptr); }

bool ReadLength(std::string_view digits, int64_t* length) {
  if (*length >= 0 || digits.empty() || digits.size() > kDigitsMax) return false;
  *length = 0;
  for (const char each : digits) {
    if (each < '0' || each > '9') return false;
    *length = *length * 10 + (each - '0');
  }
  return true;
}

bool ReadOnce(std::string_view value, std::string_view* out) {
  if (!out->empty() || value.empty()) return false;
  *out = value;
  return true;
}

// Reads a value that is one of two, which are in lower case.
bool ReadOneOf(std::string_view value, std::string_view first, std::string_view second, std::string_view* out) {
  return (Equals(value, first) || Equals(value, second)) && ReadOnce(value, out);
}

// The form in which a span is passed on: 00-<trace>-<span>-<flags>, in lower case.
bool IsSpan(std::string_view value) {
  if (value.size() < 53 || value.size() > 103 || value[2] != '-') return false;
  for (size_t index = 0; index < value.size(); ++index) {
    const char each = value[index];
    const bool is_hex = (each >= '0' && each <= '9') || (each >= 'a' && each <= 'f');
    if (!is_hex && (each != '-' || index < 2)) return false;
  }
  return true;
}

// A header. Those that are told apart by their length first are those that matter here.
bool ReadHeader(std::string_view name, std::string_view value, bool* has_host, HttpHead* out) {
  switch (name.size()) {
    case 4:
      if (!Equals(name, "host")) return true;
      if (*has_host) return false;
      *has_host = true;
      return true;
    case 6:
      return !Equals(name, "expect") || (Equals(value, "100-continue") && ReadOnce(value, &out->expect));
    case 7:
      return !Equals(name, "upgrade");
    case 10:
      return !Equals(name, "connection") || ReadOneOf(value, "keep-alive", "close", &out->connection);
    case 11:
      return !Equals(name, "traceparent") || (IsSpan(value) && ReadOnce(value, &out->traceparent));
    case 14:
      return !Equals(name, "content-length") || ReadLength(value, &out->content_length);
    case 15:
      return !Equals(name, "accept-encoding") || ReadOnce(value, &out->accept_encoding);
    case 16:
      if (Equals(name, "content-encoding")) return ReadOnce(value, &out->content_encoding);
      return !Equals(name, "proxy-connection");
    case 17:
      return !Equals(name, "transfer-encoding");
    case 28:
      return !Equals(name, "endpoint-load-metrics-format") || ReadOneOf(value, "text", "json", &out->load_format);
    case 31:
      return !Equals(name, "inference-header-content-length") || ReadLength(value, &out->document_length);
    default:
      return true;
  }
}

// The line without its end; false if there is none, or a byte in it that is no printable ASCII.
bool TakeLine(std::string_view* rest, std::string_view* line) {
  for (size_t index = 0; index < rest->size(); ++index) {
    const unsigned char each = static_cast<unsigned char>((*rest)[index]);
    if (each == '\r') {
      if (index + 1 == rest->size() || (*rest)[index + 1] != '\n') return false;
      *line = rest->substr(0, index);
      rest->remove_prefix(index + 2);
      return true;
    }
    if ((each < 0x20 && each != '\t') || each > 0x7e) return false;
  }
  return false;
}

bool ReadRequestLine(std::string_view line, HttpHead* out) {
  if (line.size() <= kVersion.size()) return false;
  const std::string_view version = line.substr(line.size() - kVersion.size());
  out->is_old = version == kOldVersion;
  if (version != kVersion && !out->is_old) return false;
  line.remove_suffix(kVersion.size());
  const size_t blank = line.find(' ');
  if (blank == std::string_view::npos) return false;
  out->method = line.substr(0, blank);
  out->target = line.substr(blank + 1);
  if ((out->method != "POST" && out->method != "GET") || out->target.empty() || out->target[0] != '/') return false;
  for (const char each : out->target) {
    if (!IsOfTarget(each)) return false;
  }
  return true;
}

std::string_view WithoutBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool SplitHeader(std::string_view line, std::string_view* name, std::string_view* value) {
  size_t colon = 0;
  while (colon < line.size() && IsOfToken(line[colon])) ++colon;
  if (colon == 0 || colon == line.size() || line[colon] != ':') return false;
  *name = line.substr(0, colon);
  *value = WithoutBlanks(line.substr(colon + 1));
  return true;
}

// Takes a prefix from the beginning.
bool Take(std::string_view prefix, std::string_view* rest) {
  if (rest->substr(0, prefix.size()) != prefix) return false;
  rest->remove_prefix(prefix.size());
  return true;
}

// Takes what is before the next slash, which must be there, and the slash.
bool TakeSegment(std::string_view* rest, std::string_view* segment) {
  const size_t end = rest->find('/');
  if (end == 0 || end == std::string_view::npos) return false;
  *segment = rest->substr(0, end);
  rest->remove_prefix(end + 1);
  return true;
}

}  // namespace

bool Equals(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (size_t index = 0; index < text.size(); ++index) {
    const char each = text[index];
    if ((each >= 'A' && each <= 'Z' ? each - 'A' + 'a' : each) != lower[index]) return false;
  }
  return true;
}

bool HttpHead::Stays() const { return is_old ? Equals(connection, "keep-alive") : !Equals(connection, "close"); }

bool HttpHead::IsUsual() const {
  return !is_old && Stays() && content_encoding.empty() && load_format.empty() && expect.empty();
}

bool ReadHttpHead(std::string_view head, HttpHead* out, std::vector<HttpHeader>* headers) {
  if (head.size() > kHeadBytesMax) return false;
  std::string_view line, name, value;
  if (!TakeLine(&head, &line) || !ReadRequestLine(line, out)) return false;
  bool has_host = false;
  for (int count = 0; count <= kHeadersMax; ++count) {
    if (!TakeLine(&head, &line)) return false;
    if (line.empty()) return head.empty();
    if (!SplitHeader(line, &name, &value) || !ReadHeader(name, value, &has_host, out)) return false;
    if (headers != nullptr) headers->push_back({name, value});
  }
  return false;
}

bool ReadModelTarget(std::string_view target, ModelTarget* out) {
  if (target.find('%') != std::string_view::npos) return false;
  if (!Take("/v2/models/", &target) || !TakeSegment(&target, &out->model)) return false;
  if (Take("versions/", &target)) {
    std::string_view digits;
    if (!TakeSegment(&target, &digits) || !ReadLength(digits, &out->version) || out->version == 0) return false;
  }
  out->action = target;
  return true;
}

bool ReadAcceptEncoding(std::string_view list, std::string_view* out) {
  *out = "";
  if (list.find_first_of(";*") != std::string_view::npos) return false;
  while (!list.empty()) {
    const size_t end = list.find(',');
    const std::string_view item = WithoutBlanks(list.substr(0, end));
    if (Equals(item, "identity")) return true;
    for (const std::string_view each : {"gzip", "deflate"}) {
      if (!Equals(item, each)) continue;
      *out = each;
      return true;
    }
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
  }
  return true;
}

}  // namespace pyruntime
