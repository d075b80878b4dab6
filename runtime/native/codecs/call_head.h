// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads the head of a plain call of gRPC, whose headers are packed: see native/_http2.pyi.
//
// The reference is frontends/grpc/head.py.

#pragma once

#include <string_view>

namespace pyruntime {

// Texts are views of the head, all of them printable ASCII. `encoding` is empty if the head names none.
struct CallHead {
  std::string_view path;
  std::string_view encoding;
  std::string_view traceparent;
};

// False for a head that is not plain, such as one that asks for a load report, and for what is no call.
bool ReadCallHead(std::string_view packed, CallHead* out);

}  // namespace pyruntime
