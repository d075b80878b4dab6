// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that backends allocate for themselves. It is the system's, so there is no state.

#pragma once

struct TRITONBACKEND_MemoryManager {};
