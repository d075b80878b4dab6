/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 * The library beside replaced.c.
 */
int neighbour(int number) { return FACTOR * number; }
