// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "memory_left.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>

namespace pyruntime {
namespace {

// As in utils/memory_left.py.
constexpr uint64_t kKeptBytesMax = uint64_t{256} << 20;
constexpr uint64_t kKeptShare = 16;
constexpr uint64_t kKib = 1024;

bool Leaves(uint64_t total, uint64_t available, size_t size) {
  const uint64_t kept = std::min(kKeptBytesMax, total / kKeptShare);
  return available >= kept && available - kept >= size;
}

// The only number in a file. None also for "max".
std::optional<uint64_t> NumberIn(const std::string& path) {
  uint64_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

// The sum of the numbers behind these names, in a file with a name and a number in each line.
uint64_t SumIn(const std::string& path, const std::vector<std::string>& names) {
  std::ifstream file(path);
  std::string line;
  uint64_t sum = 0;
  while (std::getline(file, line)) {
    const size_t end = line.find_first_of(" :");
    if (end == std::string::npos || std::find(names.begin(), names.end(), line.substr(0, end)) == names.end()) continue;
    sum += std::strtoull(line.c_str() + end + 1, nullptr, 10);
  }
  return sum;
}

bool MachineLeaves(size_t size) {
  static const std::string kPath = "/proc/meminfo";
  const uint64_t total = SumIn(kPath, {"MemTotal"});
  return total == 0 || Leaves(total * kKib, SumIn(kPath, {"MemAvailable", "SwapFree"}) * kKib, size);
}

bool CgroupLeaves(const MemoryCgroup& cgroup, size_t size) {
  const std::optional<uint64_t> limit = NumberIn(cgroup.limit);
  const std::optional<uint64_t> usage = NumberIn(cgroup.usage);
  if (!limit || !usage) return true;
  const uint64_t available = *limit + SumIn(cgroup.statistics, cgroup.caches);
  return Leaves(*limit, available - std::min(available, *usage), size);
}

}  // namespace

bool IsMemoryLeft(const std::vector<MemoryCgroup>& cgroups, size_t size) {
  return MachineLeaves(size) && std::all_of(cgroups.begin(), cgroups.end(), [size](const MemoryCgroup& each) {
           return CgroupLeaves(each, size);
         });
}

}  // namespace pyruntime
