// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// What all fuzzers of codecs share. A check that fails ends the process, which is how a fuzzer notices.
#ifndef PYRUNTIME_TESTS_NATIVE_FUZZ_FUZZ_H_
#define PYRUNTIME_TESTS_NATIVE_FUZZ_FUZZ_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace fuzz {

inline void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// Bytes with nothing before and behind them: AddressSanitizer finds whoever leaves them.
class Block {
 public:
  explicit Block(std::string_view bytes) : Block(bytes.size()) {
    if (!bytes.empty()) std::memcpy(bytes_.get(), bytes.data(), bytes.size());
  }
  explicit Block(size_t size) : bytes_(new char[size]()), size_(size) {}

  char* data() const { return bytes_.get(); }
  std::string_view view() const { return {bytes_.get(), size_}; }
  bool Contains(std::string_view part) const {
    return part.empty() || (part.data() >= bytes_.get() && part.data() + part.size() <= bytes_.get() + size_);
  }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_;
};

inline std::string_view ViewOf(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

inline bool IsPrintable(std::string_view text) {
  for (const char each : text) {
    if (each < 0x20 || each > 0x7e) return false;
  }
  return true;
}

}  // namespace fuzz

#endif  // PYRUNTIME_TESTS_NATIVE_FUZZ_FUZZ_H_
