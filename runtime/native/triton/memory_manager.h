// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that backends allocate for what they do meanwhile: the system's, so that there is nothing to keep here.

#pragma once

struct TRITONBACKEND_MemoryManager {};
