// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Documents of responses over HTTP: with an output whose contents are in it, and one whose contents follow it.
//
//   input := datatype (1 byte) surplus (1 byte) length of the text (1 byte) text contents
//
// The text is the id and the names. The shape of the outputs is as many elements as the contents have, and one more if
// the surplus is 1.

#include <algorithm>
#include <string>

#include "codecs/infer_response.h"
#include "codecs/json_contents.h"
#include "codecs/json_text.h"
#include "codecs/scanner.h"
#include "fuzz.h"
#include "strict_json.h"

using fuzz::Check;

namespace {

constexpr size_t kLeadBytes = 3;

// tests/runtime/native/test_codecs_corpus.py has the same datatypes in the same order.
struct Datatype {
  std::string_view name;
  size_t width;  // of an element, 0 for strings
};
constexpr Datatype kDatatypes[] = {{"BOOL", 1},   {"INT8", 1},   {"INT16", 2},  {"INT32", 4}, {"INT64", 8},
                                   {"UINT8", 1},  {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8}, {"FP32", 4},
                                   {"FP64", 8},   {"BYTES", 0},  {"FP16", 2}};

// The strings that are complete, each with its length before it.
int64_t CountStrings(std::string_view contents) {
  int64_t count = 0;
  for (; contents.size() >= 4; ++count) {
    uint64_t length = 4;
    for (size_t index = 0; index < 4; ++index) {
      length += static_cast<uint64_t>(static_cast<unsigned char>(contents[index])) << (8 * index);
    }
    if (length > contents.size()) break;
    contents.remove_prefix(length);
  }
  return count;
}

int64_t CountOf(const Datatype& datatype, std::string_view contents) {
  return datatype.width == 0 ? CountStrings(contents) : static_cast<int64_t>(contents.size() / datatype.width);
}

// Whether a document is written whose output has its contents in it.
bool Write(const Datatype& datatype, std::string_view text, std::string_view contents, int64_t count,
           std::string* document) {
  pyruntime::InferDocument response;
  if (!response.Begin(text, text, 1, {}) || !response.BeginOutput(text, datatype.name)) return false;
  response.AddDim(count);
  if (!response.EndWithData(datatype.name, contents)) return false;
  Check(response.BeginOutput(text, datatype.name), "a second output has the same name");
  response.AddDim(1);
  response.AddDim(count);
  response.EndBinary(contents.size());
  *document = response.End();
  return true;
}

// What is written is read as it was.
void CheckContents(const Datatype& datatype, std::string_view contents, int64_t count) {
  std::string json = "[", again, expected(contents);
  Check(pyruntime::AddContents(datatype.name, contents, count, &json), "what is in a document is written alone");
  json += "]";
  std::forward_list<std::string> texts;
  pyruntime::Scanner scanner(json.data(), json.data() + json.size(), &texts);
  int64_t read;
  Check(pyruntime::ReadContents(datatype.name, &scanner, &again, &read) && scanner.AtEnd(), "contents are read again");
  if (datatype.name == "BOOL") std::for_each(expected.begin(), expected.end(), [](char& each) { each = each != 0; });
  Check(read == count && again == expected, "and are the same");
}

void CheckText(std::string_view text) {
  std::string json, again;
  if (!pyruntime::AddJsonText(text, &json)) return;
  std::forward_list<std::string> texts;
  pyruntime::Scanner scanner(json.data(), json.data() + json.size(), &texts);
  Check(scanner.AddString(&again) && scanner.AtEnd() && again == text, "a text is read as it was written");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kLeadBytes) return 0;
  const std::string_view rest = fuzz::ViewOf(data + kLeadBytes, size - kLeadBytes);
  const fuzz::Block text(rest.substr(0, data[2])), contents(rest.substr(text.view().size()));
  const Datatype& datatype = kDatatypes[data[0] % (sizeof kDatatypes / sizeof *kDatatypes)];
  const int64_t count = CountOf(datatype, contents.view()) + (data[1] == 1 ? 1 : 0);
  std::string document;
  CheckText(text.view());
  if (!Write(datatype, text.view(), contents.view(), count, &document)) return 0;
  Check(fuzz::StrictJson::IsObject(document), "a document is JSON");
  CheckContents(datatype, contents.view(), count);
  return 0;
}
