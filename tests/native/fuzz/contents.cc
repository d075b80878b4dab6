// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Typed contents of an input of gRPC, by both readers: the one of plain contents agrees with its reference, which takes
// members in any number, order and form.
//
//   input := datatype (1 byte) contents
//
// The reference also reads the contents for an input, whose other fields are counted.

#include "codecs/typed_contents.h"

#include <string>

#include "codecs/wire.h"
#include "fuzz.h"

extern "C" {
// Its names are those of its own, and C's.
#include "src/contents.h"
}

using fuzz::Check;

namespace {

// tests/runtime/native/test_codecs_corpus.py has the same datatypes in the same order.
constexpr std::string_view kDatatypes[] = {"BOOL",   "INT8",   "INT16", "INT32", "INT64", "UINT8",
                                           "UINT16", "UINT32", "UINT64", "FP32",  "FP64",  "BYTES"};
enum { kDatatype = 2, kContents = 5 };

std::string InputOf(std::string_view datatype, std::string_view contents) {
  std::string written;
  pyruntime::AddBytesField(kDatatype, datatype, &written);
  pyruntime::AddBytesField(kContents, contents, &written);
  return written;
}

const uint8_t* Begin(const fuzz::Block& block) { return reinterpret_cast<const uint8_t*>(block.data()); }
const uint8_t* End(const fuzz::Block& block) { return Begin(block) + block.view().size(); }

int Pack(const fuzz::Block& input, const fuzz::Block& to) {
  return pack_input(Begin(input), End(input), reinterpret_cast<uint8_t*>(to.data()), to.view().size());
}

// The reference writes what it has counted, whatever the input is.
void CheckReference(const fuzz::Block& block) {
  const size_t size = block.view().size();
  Input input;
  if (count_input(Begin(block), End(block), &input) < 0) return;
  const uint64_t packed = packed_size(&input);
  Check(input.contents <= size && input.fields <= size, "counts are no more than the bytes");
  Check(elements_of(&input) <= size && packed <= 8 * size, "contents take no more memory than the input proves");
  Check(Pack(block, fuzz::Block(packed)) >= 0, "contents that were counted are of that size");
  Check(Pack(block, fuzz::Block(packed + 1)) == -1, "and of no other");
  if (packed > 0) Check(Pack(block, fuzz::Block(packed - 1)) == -1, "and no memory behind it is written");
}

// What the reader of plain contents writes, the reference writes, too.
void CheckPlain(const fuzz::Block& block, std::string_view datatype, std::string_view contents) {
  uint64_t size;
  if (!pyruntime::MeasureContents(datatype, contents, &size)) return;
  const fuzz::Block plain(size), packed(size);
  if (!pyruntime::WriteContents(datatype, contents, plain.data())) return;
  Input input;
  Check(count_input(Begin(block), End(block), &input) == 0 && packed_size(&input) == size, "plain contents have one size");
  Check(Pack(block, packed) == 1 && packed.view() == plain.view(), "and are the same");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view datatype = kDatatypes[data[0] % (sizeof kDatatypes / sizeof *kDatatypes)];
  const fuzz::Block contents(fuzz::ViewOf(data + 1, size - 1)), input(InputOf(datatype, contents.view()));
  CheckReference(contents);
  CheckReference(input);
  CheckPlain(input, datatype, contents.view());
  return 0;
}
