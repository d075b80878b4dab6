// SPDX-FileCopyrightText: The pyruntime authors
// SPDX-License-Identifier: Apache-2.0

// A library that needs a symbol that no framework has.
void* FunctionOfAnotherVersion(void);
void* (*needed)(void) = FunctionOfAnotherVersion;
