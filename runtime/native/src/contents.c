/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Counts the fields of inputs on the wire, and writes their typed contents as raw tensors.
 *
 * The rules are those of protobuf: elements of one member may come packed and one by one in any order; contents that
 * come several times are one; of a datatype that comes several times the last one counts; a field of a type that is not
 * its own is an unknown one.
 */
#include "contents.h"

#include <string.h>

/* Fields of InferInputTensor, of an entry of a map, and of InferTensorContents. */
enum { DATATYPE = 2, SHAPE = 3, INPUT_PARAMETERS = 4, CONTENTS = 5 };
enum { ENTRY_VALUE = 2 };
enum { BOOLS = 1, INTS, INT64S, UINTS, UINT64S, FLOATS, DOUBLES, STRINGS };

/* The length of a string in a tensor. */
#define STRING_LENGTH_BYTES 4

/* The datatypes that have typed contents: the member that holds them, and the bytes of an element, 0 for strings. */
static const struct {
    const char *name;
    unsigned int member, width;
} datatypes[] = {
    {"BOOL", BOOLS, 1},   {"INT8", INTS, 1},    {"INT16", INTS, 2},   {"INT32", INTS, 4},
    {"INT64", INT64S, 8}, {"UINT8", UINTS, 1},  {"UINT16", UINTS, 2}, {"UINT32", UINTS, 4},
    {"FP32", FLOATS, 4},  {"FP64", DOUBLES, 8}, {"BYTES", STRINGS, 0}, {"UINT64", UINT64S, 8},
};

/* Where the elements of an input go. */
typedef struct {
    uint8_t *to, *end;
    unsigned int member, width;
    bool fits; /* no value has been out of range so far */
} Packing;

/* The type of an element on the wire. */
static unsigned int wire_type(unsigned int member)
{
    switch (member) {
    case FLOATS:
        return TYPE_32_BIT;
    case DOUBLES:
        return TYPE_64_BIT;
    case STRINGS:
        return TYPE_BYTES;
    default:
        return TYPE_VARINT;
    }
}

/* Count the varints of a packed field. -1 if the last one is incomplete, or one is too long. */
static int count_varints(const uint8_t *at, const uint8_t *end, uint64_t *count)
{
    unsigned int digits = 0;

    for (; at < end; at++) {
        if (*at < 0x80) {
            digits = 0;
            ++*count;
        } else if (++digits == DIGITS_MAX) {
            return -1;
        }
    }
    return digits == 0 ? 0 : -1;
}

int count_parameter(const uint8_t *at, const uint8_t *end, uint64_t *fields)
{
    Field field, inner;

    while (at < end) {
        at = read_field(at, end, &field);
        if (at == NULL)
            return -1;
        ++*fields;
        if (field.number != ENTRY_VALUE || field.type != TYPE_BYTES)
            continue;
        while (field.value < field.end) {
            field.value = read_field(field.value, field.end, &inner);
            if (field.value == NULL)
                return -1;
            ++*fields;
        }
    }
    return 0;
}

/* Count the elements of a field of InferTensorContents. */
static int count_elements(const Field *field, Input *input)
{
    uint64_t *count, length = (uint64_t)(field->end - field->value);
    unsigned int type;

    if (field->number > MEMBERS)
        return 0;
    count = &input->elements[field->number];
    type = wire_type(field->number);
    if (field->type == type) {
        ++*count;
        if (type == TYPE_BYTES)
            input->string_bytes += length;
        return 0;
    }
    if (field->type != TYPE_BYTES)
        return 0;
    if (type == TYPE_VARINT)
        return count_varints(field->value, field->end, count);
    if (length % (type == TYPE_32_BIT ? 4 : 8) != 0)
        return -1;
    *count += length / (type == TYPE_32_BIT ? 4 : 8);
    return 0;
}

static int count_contents(const uint8_t *at, const uint8_t *end, Input *input)
{
    Field field;

    while (at < end) {
        at = read_field(at, end, &field);
        if (at == NULL || count_elements(&field, input) < 0)
            return -1;
    }
    return 0;
}

int count_input(const uint8_t *at, const uint8_t *end, Input *input)
{
    int failed = 0;
    Field field;

    memset(input, 0, sizeof(*input));
    while (at < end && failed == 0) {
        at = read_field(at, end, &field);
        if (at == NULL)
            return -1;
        if (field.type == TYPE_BYTES && field.number == CONTENTS) {
            input->has_contents = true;
            input->contents += (uint64_t)(field.end - field.start);
            failed = count_contents(field.value, field.end, input);
            continue;
        }
        input->fields++;
        if (field.type != TYPE_BYTES)
            continue;
        if (field.number == DATATYPE) {
            input->datatype = field.value;
            input->datatype_length = (size_t)(field.end - field.value);
        } else if (field.number == SHAPE) {
            failed = count_varints(field.value, field.end, &input->fields);
        } else if (field.number == INPUT_PARAMETERS) {
            failed = count_parameter(field.value, field.end, &input->fields);
        }
    }
    return failed;
}

unsigned int members_of(const Input *input)
{
    unsigned int members = 0, member;

    for (member = 1; member <= MEMBERS; member++)
        if (input->elements[member] > 0)
            members |= 1u << (member - 1);
    return members;
}

/* Find the member of a datatype, and the width of its elements. The member is 0 if it has no typed contents. */
static unsigned int find_member(const Input *input, unsigned int *width)
{
    size_t i;

    *width = 0;
    for (i = 0; i < sizeof(datatypes) / sizeof(*datatypes); i++) {
        if (strlen(datatypes[i].name) == input->datatype_length &&
            memcmp(datatypes[i].name, input->datatype, input->datatype_length) == 0) {
            *width = datatypes[i].width;
            return datatypes[i].member;
        }
    }
    return 0;
}

uint64_t elements_of(const Input *input)
{
    unsigned int width, member = find_member(input, &width);

    return member == 0 ? 0 : input->elements[member];
}

uint64_t packed_size(const Input *input)
{
    unsigned int width, member = find_member(input, &width);

    if (member == 0)
        return 0;
    if (member == STRINGS)
        return input->elements[STRINGS] * STRING_LENGTH_BYTES + input->string_bytes;
    return input->elements[member] * width;
}

/* Whether a value of a varint is in the range of the datatype: protobuf has cut it to 32 bits already. */
static bool is_in_range(const Packing *packing, uint64_t value)
{
    unsigned int unused_bits = 64 - 8 * packing->width;

    if (packing->member == UINTS)
        return (uint32_t)value >> (8 * packing->width - 1) >> 1 == 0;
    if (packing->member == INTS)
        return (int64_t)(value << unused_bits) >> unused_bits == (int32_t)(uint32_t)value || packing->width == 4;
    return true;
}

static int put(Packing *packing, const void *bytes, size_t length)
{
    if (length > (size_t)(packing->end - packing->to))
        return -1;
    memcpy(packing->to, bytes, length);
    packing->to += length;
    return 0;
}

static int put_varint(Packing *packing, uint64_t value)
{
    uint8_t bytes[8];
    unsigned int i;

    if (packing->member == BOOLS)
        value = value != 0;
    else if (!is_in_range(packing, value))
        packing->fits = false;
    for (i = 0; i < packing->width; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    return put(packing, bytes, packing->width);
}

static int put_string(Packing *packing, const uint8_t *at, size_t length)
{
    uint8_t bytes[STRING_LENGTH_BYTES];
    unsigned int i;

    for (i = 0; i < STRING_LENGTH_BYTES; i++)
        bytes[i] = (uint8_t)(length >> (8 * i));
    return put(packing, bytes, sizeof(bytes)) < 0 ? -1 : put(packing, at, length);
}

/* Write the elements of a field of InferTensorContents. Numbers of a fixed width are little-endian on the wire, too. */
static int pack_field(Packing *packing, const Field *field)
{
    unsigned int type = wire_type(packing->member);
    const uint8_t *at = field->value;
    uint64_t value;

    if (field->number != packing->member || (field->type != type && field->type != TYPE_BYTES))
        return 0;
    if (type == TYPE_BYTES)
        return put_string(packing, field->value, (size_t)(field->end - field->value));
    if (type != TYPE_VARINT)
        return put(packing, field->value, (size_t)(field->end - field->value));
    if (field->type == TYPE_VARINT)
        return put_varint(packing, field->varint);
    while (at < field->end) {
        at = read_varint(at, field->end, &value);
        if (at == NULL || put_varint(packing, value) < 0)
            return -1;
    }
    return 0;
}

static int pack_contents(Packing *packing, const uint8_t *at, const uint8_t *end)
{
    Field field;

    while (at < end) {
        at = read_field(at, end, &field);
        if (at == NULL || pack_field(packing, &field) < 0)
            return -1;
    }
    return 0;
}

int pack_input(const uint8_t *at, const uint8_t *end, uint8_t *to, uint64_t size)
{
    Packing packing = {to, to + size, 0, 0, true};
    Input input = {0};
    const uint8_t *start = at;
    Field field;

    /* The datatype may come after the contents. */
    while (at < end) {
        at = read_field(at, end, &field);
        if (at == NULL)
            return -1;
        if (field.type == TYPE_BYTES && field.number == DATATYPE) {
            input.datatype = field.value;
            input.datatype_length = (size_t)(field.end - field.value);
        }
    }
    packing.member = find_member(&input, &packing.width);
    for (at = start; at < end && packing.member != 0;) {
        at = read_field(at, end, &field);
        if (field.type == TYPE_BYTES && field.number == CONTENTS &&
            pack_contents(&packing, field.value, field.end) < 0)
            return -1;
    }
    if (packing.to != packing.end)
        return -1;
    return packing.fits;
}
