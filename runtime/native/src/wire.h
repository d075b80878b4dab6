/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Reads the wire format of protobuf from memory:
 *
 *   message = *field
 *   field   = tag (varint: number << 3 | type) value
 *   value   = varint | 8 bytes | 4 bytes | length (varint) bytes
 *
 * Groups, which are obsolete, are not supported.
 */
#ifndef PYRUNTIME_WIRE_H
#define PYRUNTIME_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TYPE_VARINT = 0, TYPE_64_BIT = 1, TYPE_BYTES = 2, TYPE_32_BIT = 5 };

/* The most bytes of a tag (32 bits), and of any other varint (64 bits). */
#define TAG_DIGITS_MAX 5
#define DIGITS_MAX 10

/* A field of a message. `value` to `end` are the bytes of its value, without their length. */
typedef struct {
    uint32_t number;
    unsigned int type;
    uint64_t varint; /* the value of a varint */
    const uint8_t *start, *value, *end;
} Field;

/* Read a varint of at most `digits` bytes. Returns the address after it, or NULL if there is none. */
static inline const uint8_t *read_digits(const uint8_t *at, const uint8_t *end, int digits, uint64_t *number)
{
    int digit;

    *number = 0;
    for (digit = 0; digit < digits && at < end; digit++, at++) {
        *number |= (uint64_t)(*at & 0x7f) << (7 * digit);
        if (*at < 0x80)
            return at + 1;
    }
    return NULL;
}

static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *number)
{
    return read_digits(at, end, DIGITS_MAX, number);
}

/* Read the field at `at`. Returns the address after it, or NULL if there is none. */
static inline const uint8_t *read_field(const uint8_t *at, const uint8_t *end, Field *field)
{
    uint64_t tag, length;

    *field = (Field){.start = at, .value = at, .end = at};
    at = read_digits(at, end, TAG_DIGITS_MAX, &tag);
    if (at == NULL || tag > UINT32_MAX || tag >> 3 == 0)
        return NULL;
    field->number = (uint32_t)(tag >> 3);
    field->type = tag & 7;
    switch (field->type) {
    case TYPE_VARINT:
        field->value = at;
        return field->end = read_varint(at, end, &field->varint);
    case TYPE_64_BIT:
        length = 8;
        break;
    case TYPE_BYTES:
        at = read_varint(at, end, &length);
        break;
    case TYPE_32_BIT:
        length = 4;
        break;
    default:
        return NULL;
    }
    if (at == NULL || length > (uint64_t)(end - at))
        return NULL;
    field->value = at;
    return field->end = at + length;
}

#endif
