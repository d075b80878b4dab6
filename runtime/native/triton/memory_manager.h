// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that backends allocate for themselves. The pools are those of the process, so there is no state.

#pragma once

struct TRITONBACKEND_MemoryManager {};
