// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "host.h"

namespace pyruntime {

Host& Host::Get() {
  // Not destroyed on purpose, see the header: the one object of ours without an owner.
  static Host* const host = new Host;
  return *host;
}

}  // namespace pyruntime
