// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the head of a plain HTTP/1.1 request, as clients of the inference protocol send it.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace pyruntime {

// The longest head, and the most headers, that are read here. Most clients send half a KiB and ten headers.
constexpr size_t kHeadBytesMax = 8 << 10;
constexpr int kHeadersMax = 64;

// The parts of a head that the server acts on, as views of it. A number is -1, and a text empty, where there is no such
// header.
struct HttpHead {
  std::string_view method;
  std::string_view target;
  int64_t content_length = -1;
  int64_t document_length = -1;  // Inference-Header-Content-Length
  std::string_view content_encoding;
  std::string_view accept_encoding;
  std::string_view traceparent;
  std::string_view load_format;  // Endpoint-Load-Metrics-Format
  std::string_view connection;
  std::string_view expect;
  bool is_old = false;  // HTTP/1.0

  // Whether the connection stays when the request is answered.
  bool Stays() const;
  // Whether none of these has a say in how the request is read or answered: its body is as it is and comes at once, and
  // the answer has nothing to say besides.
  bool IsUsual() const;
};

// Whether a text is `lower`, which is in lower case, in any case.
bool Equals(std::string_view text, std::string_view lower);

struct HttpHeader {
  std::string_view name;
  std::string_view value;
};

// Adds all headers to `headers`, unless that is null. Returns false for a head that is malformed or not plain: another
// version than HTTP/1.1 and HTTP/1.0, a body in chunks, `Upgrade`, a header twice that matters here, another value than
// `keep-alive` and `close` for `Connection`, than `100-continue` for `Expect`, and than `text` and `json` for the
// format of a load report, or any byte that is no printable ASCII. All other headers are ignored. `head` ends with the
// empty line.
bool ReadHttpHead(std::string_view head, HttpHead* out, std::vector<HttpHeader>* headers);

// Where a request to a model goes. `action` is the last word of the path.
struct ModelTarget {
  std::string_view model;
  int64_t version = -1;
  std::string_view action;
};

// Reads /v2/models/<model>[/versions/<version>]/<action>. Returns false for any other target, for one with escapes, and
// for a version that is no number from 1 on.
bool ReadModelTarget(std::string_view target, ModelTarget* out);

// Reads which encoding a list of accepted ones asks for: "gzip", "deflate", or "" for none. Returns false for a list
// with weights or with "*".
bool ReadAcceptEncoding(std::string_view list, std::string_view* out);

}  // namespace pyruntime
