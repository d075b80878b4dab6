/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Splits a complete ModelInferRequest: see wire.h for the grammar, and walk.c for large ones with raw contents. Before
 * anything is allocated, all of the message is counted, and refused if it exceeds the limits.
 */
#include "contents.h"
#include "http2.h"

enum { ID = 3, PARAMETERS = 4, INPUTS = 5, OUTPUTS = 6, RAW_CONTENTS = 7 };
/* Of InferRequestedOutputTensor, and of InferInputTensor. */
enum { OUTPUT_PARAMETERS = 2, CONTENTS = 5 };

/* The most inputs, the most outputs and the most parameters of a request, as over HTTP. */
#define TENSORS_MAX 4096
#define PARAMETERS_MAX 1024
/* The most fields of the key, however deep; elements of shapes count as fields. Protobuf and Python make objects of
 * them: some 10 ms of work at most. */
#define FIELDS_MAX 131072
/* Longer messages are read without Python's lock: this much takes less than a millisecond. */
#define LOCKED_BYTES_MAX ((size_t)1 << 16)

/* The position of an input in a message, and what is known of its typed contents. */
typedef struct {
    uint64_t index, offset, length, elements, size;
    unsigned int members;
} Typed;

/* The parts of a message. Sizes are in bytes. */
typedef struct {
    const uint8_t *start, *end;
    uint64_t alignment;
    const uint8_t *id;
    size_t id_bytes;
    uint64_t inputs, outputs, parameters, fields;
    uint64_t key_bytes;
    size_t raw_count, typed_count;
    uint64_t raw_size, typed_size;
    Raw *raws;
    Typed *typed;
} Message;

/* The next multiple. Cannot overflow, because lengths are of objects in memory. */
static uint64_t aligned(uint64_t offset, uint64_t alignment)
{
    uint64_t over = offset % alignment;
    return over == 0 ? offset : offset + (alignment - over);
}

static PyObject *raw_pair(uint64_t offset, uint64_t length)
{
    return Py_BuildValue("(KK)", (unsigned long long)offset, (unsigned long long)length);
}

PyObject *raws_tuple(const Raw *raws, size_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count), *pair;
    size_t i;

    for (i = 0; tuple != NULL && i < count; i++) {
        pair = raw_pair(raws[i].offset, raws[i].length);
        if (pair == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, pair) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static int parse_alignment(PyObject *object, uint64_t *alignment)
{
    long value = PyLong_AsLong(object);

    if (value == -1 && PyErr_Occurred() != NULL)
        return -1;
    if (value < 1 || value > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "alignment must be positive, and not huge");
        return -1;
    }
    *alignment = (uint64_t)value;
    return 0;
}

/* Count a requested output. */
static int count_output(const uint8_t *at, const uint8_t *end, uint64_t *fields)
{
    Field field;

    while (at < end) {
        at = read_field(at, end, &field);
        if (at == NULL)
            return -1;
        ++*fields;
        if (field.type == TYPE_BYTES && field.number == OUTPUT_PARAMETERS &&
            count_parameter(field.value, field.end, fields) < 0)
            return -1;
    }
    return 0;
}

/* Write a varint, and return the number of its bytes. Without an address, only that. */
static size_t put_varint(uint64_t value, char *to)
{
    size_t digits = 0;

    do {
        uint8_t digit = value & 0x7f;
        value >>= 7;
        if (to != NULL)
            to[digits] = (char)(value > 0 ? digit | 0x80 : digit);
        digits++;
    } while (value > 0);
    return digits;
}

/* The bytes of an input in the key, where it has no contents. */
static uint64_t input_key_bytes(const Field *field, const Input *input)
{
    uint64_t rest = (uint64_t)(field->end - field->value) - input->contents;

    if (!input->has_contents)
        return (uint64_t)(field->end - field->start);
    return 1 + put_varint(rest, NULL) + rest;
}

static int count_an_input(Message *message, const Field *field)
{
    Input input;

    if (count_input(field->value, field->end, &input) < 0)
        return -1;
    message->inputs++;
    message->fields += input.fields;
    message->key_bytes += input_key_bytes(field, &input);
    if (input.has_contents) {
        message->typed_count++;
        message->typed_size = aligned(message->typed_size, message->alignment) + packed_size(&input);
    }
    return 0;
}

/* Count the fields of a message. -1 if it cannot be parsed. */
static int count_message(Message *message)
{
    const uint8_t *at = message->start;
    Field field;

    while (at < message->end) {
        int failed = 0;

        at = read_field(at, message->end, &field);
        if (at == NULL)
            return -1;
        if (field.type == TYPE_BYTES && field.number == RAW_CONTENTS) {
            message->raw_size = aligned(message->raw_size, message->alignment) + (uint64_t)(field.end - field.value);
            if (++message->raw_count > RAWS_MAX)
                return -1;
            continue;
        }
        if (field.type == TYPE_BYTES && field.number == ID) {
            message->id = field.value;
            message->id_bytes = (size_t)(field.end - field.value);
            continue;
        }
        message->fields++;
        if (field.type == TYPE_BYTES && field.number == INPUTS) {
            if (count_an_input(message, &field) < 0)
                return -1;
            continue;
        }
        message->key_bytes += (uint64_t)(field.end - field.start);
        if (field.type == TYPE_BYTES && field.number == OUTPUTS) {
            message->outputs++;
            failed = count_output(field.value, field.end, &message->fields);
        } else if (field.type == TYPE_BYTES && field.number == PARAMETERS) {
            message->parameters++;
            failed = count_parameter(field.value, field.end, &message->fields);
        }
        if (failed < 0)
            return -1;
    }
    return 0;
}

static int check_count(uint64_t count, uint64_t most, const char *what)
{
    if (count <= most)
        return 0;
    PyErr_Format(PyExc_ValueError, "the request has %llu %s, expected at most %llu", (unsigned long long)count, what,
                 (unsigned long long)most);
    return -1;
}

static int check_limits(const Message *message)
{
    if (check_count(message->parameters, PARAMETERS_MAX, "parameters") < 0 ||
        check_count(message->inputs, TENSORS_MAX, "inputs") < 0 ||
        check_count(message->outputs, TENSORS_MAX, "outputs") < 0 ||
        check_count(message->id_bytes, KEY_BYTES_MAX, "bytes in its id") < 0 ||
        check_count(message->fields, FIELDS_MAX, "fields besides its contents") < 0)
        return -1;
    return check_count(message->key_bytes, KEY_BYTES_MAX, "bytes besides its contents");
}

/* Copy an input without its contents, and return the address after the copy. */
static char *gather_input(const Field *field, const Input *input, char *key)
{
    const uint8_t *at = field->value;
    Field inner;

    *key++ = INPUTS << 3 | TYPE_BYTES;
    key += put_varint((uint64_t)(field->end - field->value) - input->contents, key);
    while (at < field->end) {
        at = read_field(at, field->end, &inner);
        if (inner.type == TYPE_BYTES && inner.number == CONTENTS)
            continue;
        memcpy(key, inner.start, (size_t)(inner.end - inner.start));
        key += inner.end - inner.start;
    }
    return key;
}

/* Copy the fields of the key, and note the positions of raw and typed contents: all of it was counted before. */
static void gather(const Message *message, char *key)
{
    const uint8_t *at = message->start;
    size_t raws = 0, typed = 0;
    uint64_t inputs = 0;
    Input input;
    Field field;

    while (at < message->end) {
        at = read_field(at, message->end, &field);
        if (field.type == TYPE_BYTES && field.number == RAW_CONTENTS) {
            message->raws[raws++] =
                (Raw){(uint64_t)(field.value - message->start), (uint64_t)(field.end - field.value)};
            continue;
        }
        if (field.type == TYPE_BYTES && field.number == ID)
            continue;
        if (field.type == TYPE_BYTES && field.number == INPUTS) {
            uint64_t index = inputs++;
            if (message->typed_count > 0 && count_input(field.value, field.end, &input) == 0 && input.has_contents) {
                key = gather_input(&field, &input, key);
                message->typed[typed++] =
                    (Typed){index, (uint64_t)(field.value - message->start), (uint64_t)(field.end - field.value),
                            elements_of(&input), packed_size(&input), members_of(&input)};
                continue;
            }
        }
        memcpy(key, field.start, (size_t)(field.end - field.start));
        key += field.end - field.start;
    }
}

static PyObject *typed_tuple(const Typed *typed, size_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    size_t i;

    for (i = 0; tuple != NULL && i < count; i++) {
        PyObject *row = Py_BuildValue("(KKKKKI)", (unsigned long long)typed[i].offset,
                                      (unsigned long long)typed[i].length, (unsigned long long)typed[i].size,
                                      (unsigned long long)typed[i].index, (unsigned long long)typed[i].elements,
                                      typed[i].members);
        if (row == NULL || PyTuple_SetItem(tuple, (Py_ssize_t)i, row) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* The result of `split` for a message that was counted and is within the limits. */
static PyObject *parts_of(Message *message)
{
    PyObject *key = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)message->key_bytes), *result = NULL;
    size_t size = (size_t)(message->end - message->start);

    message->raws = PyMem_Calloc(message->raw_count + 1, sizeof(*message->raws));
    message->typed = PyMem_Calloc(message->typed_count + 1, sizeof(*message->typed));
    if (key == NULL || message->raws == NULL || message->typed == NULL) {
        if (PyErr_Occurred() == NULL)
            PyErr_NoMemory();
        Py_XDECREF(key);
    } else {
        char *bytes = PyBytes_AsString(key);
        PyThreadState *thread = size > LOCKED_BYTES_MAX ? PyEval_SaveThread() : NULL;
        gather(message, bytes);
        if (thread != NULL)
            PyEval_RestoreThread(thread);
        /* Typed contents beside raw ones are refused, so nothing of them is packed. */
        result = Py_BuildValue("(Ny#NKN)", key, message->id != NULL ? (const char *)message->id : "",
                               (Py_ssize_t)message->id_bytes, raws_tuple(message->raws, message->raw_count),
                               (unsigned long long)(message->raw_count > 0 ? message->raw_size : message->typed_size),
                               typed_tuple(message->typed, message->typed_count));
    }
    PyMem_Free(message->raws);
    PyMem_Free(message->typed);
    return result;
}

PyObject *infer_split(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    PyThreadState *thread = NULL;
    Message message = {0};
    PyObject *parts = NULL;
    Py_buffer buffer;
    int failed;

    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "split() needs a message and an alignment");
        return NULL;
    }
    if (parse_alignment(arguments[1], &message.alignment) < 0 ||
        PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    message.start = buffer.buf;
    message.end = message.start + buffer.len;
    if ((size_t)buffer.len > LOCKED_BYTES_MAX)
        thread = PyEval_SaveThread();
    failed = count_message(&message);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    if (failed < 0) {
        Py_INCREF(Py_None);
        parts = Py_None;
    } else if (check_limits(&message) == 0) {
        parts = parts_of(&message);
    }
    PyBuffer_Release(&buffer);
    return parts;
}

PyObject *infer_count_fields(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    PyThreadState *thread = NULL;
    const uint8_t *at, *end;
    uint64_t fields = 0;
    Py_buffer buffer;
    long entries;
    Field field;

    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "count_fields() needs a message and the number of a field");
        return NULL;
    }
    entries = PyLong_AsLong(arguments[1]);
    if (PyErr_Occurred() != NULL || PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    at = buffer.buf;
    end = at + buffer.len;
    if ((size_t)buffer.len > LOCKED_BYTES_MAX)
        thread = PyEval_SaveThread();
    while (at != NULL && at < end) {
        at = read_field(at, end, &field);
        fields++;
        if (at != NULL && field.type == TYPE_BYTES && (long)field.number == entries &&
            count_parameter(field.value, field.end, &fields) < 0)
            at = NULL;
    }
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    PyBuffer_Release(&buffer);
    if (at == NULL && buffer.len > 0)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(fields);
}

/* Raw contents, or an input to pack: where it lies in the message, and its size in the destination. */
typedef struct {
    uint64_t offset, length, size;
} Piece;

/* Copy or pack one piece. Returns 1, 0 if its values do not fit their datatype, and -1 without an exception if it does
 * not lie in the message or does not fit. */
static int put_piece(const Py_buffer *message, const Piece *piece, const Py_buffer *destination, uint64_t *end,
                     uint64_t alignment, bool is_typed)
{
    uint64_t room = (uint64_t)destination->len, bytes = (uint64_t)message->len;
    const uint8_t *from;
    uint8_t *to;

    *end = aligned(*end, alignment);
    if (piece->offset > bytes || piece->length > bytes - piece->offset || *end > room || piece->size > room - *end)
        return -1;
    from = (const uint8_t *)message->buf + piece->offset;
    to = (uint8_t *)destination->buf + *end;
    *end += piece->size;
    if (is_typed)
        return pack_input(from, from + piece->length, to, piece->size);
    if (piece->size > 0)
        memcpy(to, from, (size_t)piece->size);
    return 1;
}

/* Read the pieces of a tuple, each of which begins with its offset and its length; typed ones with their size, too. */
static Piece *read_pieces(PyObject *tuple, bool is_typed)
{
    Py_ssize_t count = PyTuple_Size(tuple), i, j;
    Piece *pieces = PyMem_Calloc((size_t)count + 1, sizeof(*pieces));

    if (pieces == NULL)
        return (Piece *)PyErr_NoMemory();
    for (i = 0; i < count; i++) {
        PyObject *row = PyTuple_GetItem(tuple, i);
        uint64_t numbers[3] = {0};
        for (j = 0; j < (is_typed ? 3 : 2) && row != NULL; j++) {
            PyObject *number = PyTuple_GetItem(row, j);
            /* A negative one lies in no message. */
            numbers[j] = number != NULL ? (uint64_t)PyLong_AsSsize_t(number) : 0;
        }
        if (PyErr_Occurred() != NULL) {
            PyMem_Free(pieces);
            return NULL;
        }
        pieces[i] = (Piece){numbers[0], numbers[1], is_typed ? numbers[2] : numbers[1]};
    }
    return pieces;
}

/* Put all pieces into the destination. Whether each of them fits its datatype, or NULL with an exception set. */
static PyObject *put_pieces(const Py_buffer *message, PyObject *tuple, const Py_buffer *destination,
                            uint64_t alignment, bool is_typed)
{
    Py_ssize_t count = PyTuple_Size(tuple), i;
    Piece *pieces = read_pieces(tuple, is_typed);
    PyThreadState *thread = NULL;
    PyObject *fits = NULL;
    uint64_t end = 0;
    int put = 1;

    if (pieces == NULL)
        return NULL;
    if ((size_t)message->len > LOCKED_BYTES_MAX)
        thread = PyEval_SaveThread();
    for (i = 0; i < count && put >= 0; i++) {
        put = put_piece(message, &pieces[i], destination, &end, alignment, is_typed);
        pieces[i].size = (uint64_t)put;
    }
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    if (put < 0)
        PyErr_SetString(PyExc_ValueError, "the contents do not lie in the message, or do not fit");
    else
        fits = PyTuple_New(is_typed ? count : 0);
    for (i = 0; fits != NULL && is_typed && i < count; i++)
        PyTuple_SetItem(fits, i, PyBool_FromLong((long)pieces[i].size));
    PyMem_Free(pieces);
    return fits;
}

static PyObject *put_all(PyObject *const *arguments, Py_ssize_t count, bool is_typed)
{
    Py_buffer message, destination;
    uint64_t alignment;
    PyObject *fits;

    if (count != 4 || !PyTuple_Check(arguments[1])) {
        PyErr_SetString(PyExc_TypeError, "expected a message, a tuple of positions in it, a destination, an alignment");
        return NULL;
    }
    if (parse_alignment(arguments[3], &alignment) < 0 || PyObject_GetBuffer(arguments[0], &message, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(arguments[2], &destination, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&message);
        return NULL;
    }
    fits = put_pieces(&message, arguments[1], &destination, alignment, is_typed);
    PyBuffer_Release(&destination);
    PyBuffer_Release(&message);
    return fits;
}

PyObject *infer_scatter(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    PyObject *fits = put_all(arguments, count, false);

    (void)module;
    if (fits == NULL)
        return NULL;
    Py_DECREF(fits);
    Py_RETURN_NONE;
}

PyObject *infer_pack(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    return put_all(arguments, count, true);
}
