// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks that there is memory left before a region grows: utils/memory_left.py for native threads, which cannot ask
// Python.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace pyruntime {

// The files of a cgroup with a limit. `caches` are the numbers in `statistics` that the kernel frees before it kills a
// process.
struct MemoryCgroup {
  std::string limit;
  std::string usage;
  std::string statistics;
  std::vector<std::string> caches;
};

// Whether `size` bytes more leave enough memory to the machine and to these cgroups. What the system does not say is no
// limit.
bool IsMemoryLeft(const std::vector<MemoryCgroup>& cgroups, size_t size);

}  // namespace pyruntime
