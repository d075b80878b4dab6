// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

#include "host.h"

namespace pyruntime {

Host& Host::Get() {
  // Deliberately not destroyed, see the header: the only object without an owner.
  static Host* const host = new Host;
  return *host;
}

}  // namespace pyruntime
