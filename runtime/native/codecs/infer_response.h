// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes the document of an inference response over HTTP, whose outputs are in it, or follow it as binary data.
//
//   document := {"id"?, "model_name", "model_version", "parameters"?, "outputs": [output*]}
//   output   := {"name", "datatype", "shape", "parameters": {"binary_data_size"} | "data"}
//
// The reference is frontends/http/kserve_response.py, whose bytes these are.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pyruntime {

class InferDocument {
 public:
  // Each method returns false for a text that is not UTF-8. `parameters` are a JSON object, or nothing.
  bool Begin(std::string_view id, std::string_view model, int64_t version, std::string_view parameters);
  bool BeginOutput(std::string_view name, std::string_view datatype);
  void AddDim(int64_t dim);
  // The output has so many bytes behind the document,
  void EndBinary(uint64_t byte_size);
  // or these in it. False for contents that do not fill it, or that AddContents leaves to the reference.
  bool EndWithData(std::string_view datatype, std::string_view contents);

  // The complete document.
  const std::string& End();

 private:
  std::string text_;
  bool has_outputs_ = false;
  bool has_dims_ = false;
  // The elements of an output; none if they are too many to be counted.
  std::optional<int64_t> elements_;
};

// The head of the response. `document` is the length of a document that binary data follows, 0 if none does; `length`
// that of the body; `lines` are other headers.
std::string InferHead(size_t document, uint64_t length, std::string_view lines);

}  // namespace pyruntime
