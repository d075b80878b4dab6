/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Splits a large ModelInferRequest while it arrives: its raw contents (field 7) go to their destination, and everything
 * else is kept together unchanged. If that becomes larger than the key of a request may be, it contains typed contents
 * or is refused: the rest of the message is then gathered with it, and split when it is complete.
 *
 * The grammar stands in wire.h. As in protobuf, a field 7 that is not length-delimited is an ordinary field.
 */
#include "http2.h"
#include "wire.h"

#define RAW_CONTENTS 7
#define RAWS_FIRST 8
void walk_leave(Stream *stream)
{
    Walk *walk = stream->walk;

    stream->walk = NULL;
    if (walk == NULL)
        return;
    if (walk->destination.obj != NULL)
        PyBuffer_Release(&walk->destination);
    Py_XDECREF(walk->grow);
    bytes_free(&walk->meta);
    PyMem_Free(walk->raws);
    PyMem_Free(walk);
}

/* Gather the message like one that is not large: all of it so far is in meta. */
static void gather(Session *self, Stream *stream)
{
    framing_gather(self, stream, &stream->walk->meta);
    walk_leave(stream);
}

/* Drop the rest of the message, of which nothing is told. */
static void refuse(Session *self, Stream *stream)
{
    stream->in = IN_REFUSE;
    walk_leave(stream);
    framing_count(self, stream, 0);
}

/* Take the answer of `place`: a buffer, or a buffer of which only a part is ready. */
static int take_place(Walk *walk, PyObject *answer)
{
    PyObject *buffer = answer, *grow = NULL;
    Py_ssize_t ready = PY_SSIZE_T_MAX;

    if (PyTuple_Check(answer) && !PyArg_ParseTuple(answer, "OnO:place", &buffer, &ready, &grow))
        return -1;
    walk->placed = true;
    if (PyObject_GetBuffer(buffer, &walk->destination, PyBUF_WRITABLE) < 0)
        return -1;
    walk->ready = (size_t)(ready < walk->destination.len ? ready : walk->destination.len);
    Py_XINCREF(grow);
    walk->grow = grow;
    return 0;
}

/* Have more of the destination ready, up to `end` at least. If it is refused, the stream is in another state
 * afterwards. */
static int grow(Session *self, Stream *stream, size_t end)
{
    Walk *walk = stream->walk;
    PyObject *answer = PyObject_CallFunction(walk->grow, "n", (Py_ssize_t)end);
    Py_ssize_t ready;

    if (answer == NULL)
        return -1;
    ready = PyLong_AsSsize_t(answer);
    Py_DECREF(answer);
    if (ready == -1 && PyErr_Occurred() != NULL)
        return -1;
    if (stream->over || stream->ended || ready < (Py_ssize_t)end)
        refuse(self, stream);
    else
        walk->ready = (size_t)(ready < walk->destination.len ? ready : walk->destination.len);
    return 0;
}

/* Call `place` for the destination of the raw contents whose tag has arrived and is in meta. If it returns no buffer,
 * the stream is in another state afterwards. */
static int ask(Session *self, Stream *stream)
{
    Walk *walk = stream->walk;
    size_t left = stream->length - stream->come + (walk->meta.length - walk->field);
    PyObject *answer = PyObject_CallFunction(self->place, "iy#n", (int)stream->id, walk->meta.bytes,
                                             (Py_ssize_t)walk->field, (Py_ssize_t)left);
    int failed = 0;

    if (answer == NULL)
        return -1;
    if (stream->over || stream->ended || answer == Py_False) {
        refuse(self, stream);
    } else if (answer == Py_None) {
        gather(self, stream);
    } else {
        failed = take_place(walk, answer);
    }
    Py_DECREF(answer);
    return failed;
}

/* Record the destination of raw contents whose length is known. */
static int begin_raw(Session *self, Stream *stream)
{
    Walk *walk = stream->walk;
    size_t size = (size_t)walk->destination.len, over = walk->end % self->alignment;
    size_t offset = over == 0 ? walk->end : walk->end + (self->alignment - over);

    if (offset < walk->end || offset > size || walk->left > size - offset)
        return framing_malformed(self, stream, "the raw contents do not fit where they should go");
    if (walk->count == RAWS_MAX)
        return framing_malformed(self, stream, "there are too many raw contents");
    if (walk->count == walk->capacity) {
        size_t capacity = walk->capacity == 0 ? RAWS_FIRST : walk->capacity * 2;
        Raw *raws = PyMem_Realloc(walk->raws, capacity * sizeof(*raws));
        if (raws == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        walk->raws = raws;
        walk->capacity = capacity;
    }
    walk->raws[walk->count].offset = offset;
    walk->raws[walk->count++].length = walk->left;
    walk->meta.length = walk->field;
    walk->end = offset;
    walk->at = walk->left > 0 ? IN_RAW : AT_TAG;
    return 0;
}

/* Handle a complete tag. */
static int on_tag(Session *self, Stream *stream)
{
    Walk *walk = stream->walk;
    uint64_t tag = walk->number;

    if (tag > UINT32_MAX || tag >> 3 == 0)
        return framing_malformed(self, stream, "the message has a field without a number");
    walk->is_raw = tag == (RAW_CONTENTS << 3 | TYPE_BYTES);
    switch (tag & 7) {
    case TYPE_VARINT:
        walk->at = AT_VARINT;
        return 0;
    case TYPE_BYTES:
        walk->at = AT_LENGTH;
        return walk->is_raw && !walk->placed ? ask(self, stream) : 0;
    case TYPE_64_BIT:
    case TYPE_32_BIT:
        walk->left = (tag & 7) == TYPE_64_BIT ? 8 : 4;
        walk->at = IN_FIELD;
        return 0;
    default:
        return framing_malformed(self, stream, "the message has a field of an unknown type");
    }
}

/* Handle a complete length. */
static int on_length(Session *self, Stream *stream)
{
    Walk *walk = stream->walk;

    walk->left = walk->number;
    if (walk->left > stream->length - stream->come)
        return framing_malformed(self, stream, "the message has a field that is longer than it");
    if (walk->is_raw)
        return begin_raw(self, stream);
    walk->at = walk->left > 0 ? IN_FIELD : AT_TAG;
    return 0;
}

/* Take one byte of a varint. */
static int take_digit(Session *self, Stream *stream, uint8_t byte)
{
    Walk *walk = stream->walk;
    int at = walk->at;

    if (at == AT_TAG && walk->digits == 0)
        walk->field = walk->meta.length;
    if (bytes_add(&walk->meta, &byte, 1) < 0)
        return -1;
    stream->come++;
    if (walk->digits == 0)
        walk->number = 0;
    if (walk->digits < DIGITS_MAX)
        walk->number |= (uint64_t)(byte & 0x7f) << (7 * walk->digits);
    walk->digits++;
    if (byte & 0x80) {
        if (walk->digits < (at == AT_TAG ? TAG_DIGITS_MAX : DIGITS_MAX))
            return 0;
        return framing_malformed(self, stream, "the message has a number that is too long");
    }
    walk->digits = 0;
    if (at == AT_TAG)
        return on_tag(self, stream);
    if (at == AT_LENGTH)
        return on_length(self, stream);
    walk->at = AT_TAG;
    return 0;
}

/* Take bytes of a field. Returns the number of bytes taken, or -1. */
static Py_ssize_t take_bytes(Session *self, Stream *stream, const uint8_t *data, size_t length)
{
    Walk *walk = stream->walk;
    size_t taken = walk->left < length ? (size_t)walk->left : length;

    if (stream->come + walk->left > stream->length) {
        /* Only fields of a fixed size: a length is handled when it is complete. */
        return framing_malformed(self, stream, "the message has a field that is longer than it") < 0 ? -1 : 0;
    }
    if (walk->at == IN_RAW && walk->end + taken > walk->ready) {
        if (grow(self, stream, walk->end + taken) < 0)
            return -1;
        if (stream->in != IN_WALK)
            return 0;
    }
    if (walk->at == IN_RAW) {
        memcpy((char *)walk->destination.buf + walk->end, data, taken);
        walk->end += taken;
    } else if (bytes_add(&walk->meta, data, taken) < 0) {
        return -1;
    }
    walk->left -= taken;
    stream->come += taken;
    if (walk->left == 0)
        walk->at = AT_TAG;
    return (Py_ssize_t)taken;
}

/* The bytes besides the raw contents exceed the limit for the key of a request. */
static int on_long_meta(Session *self, Stream *stream)
{
    if (stream->walk->placed)
        return framing_malformed(self, stream, "the message has too many bytes besides its raw contents");
    gather(self, stream);
    return 0;
}

/* Handle the end of the message. */
static int finish(Session *self, Stream *stream)
{
    Walk *walk = stream->walk;
    PyObject *meta, *value;
    bool placed = walk->placed;

    if (walk->at != AT_TAG || walk->digits > 0)
        return framing_malformed(self, stream, "the message ends inside of a field");
    meta = PyBytes_FromStringAndSize(walk->meta.bytes, (Py_ssize_t)walk->meta.length);
    value = meta;
    if (placed && meta != NULL)
        value = Py_BuildValue("(NN)", meta, raws_tuple(walk->raws, walk->count));
    walk_leave(stream);
    framing_count(self, stream, 0);
    stream->in = IN_PREFIX;
    stream->come = 0;
    return tell_of(self, stream, placed ? PLACED : MESSAGE, value);
}

Py_ssize_t walk_take(Session *self, Stream *stream, const uint8_t *data, size_t length)
{
    size_t taken = 0;

    if (length > stream->length - stream->come)
        length = stream->length - stream->come;
    while (taken < length && stream->in == IN_WALK) {
        Py_ssize_t step = 1;
        if (stream->walk->at == IN_FIELD || stream->walk->at == IN_RAW)
            step = take_bytes(self, stream, data + taken, length - taken);
        else if (take_digit(self, stream, data[taken]) < 0)
            return -1;
        if (step < 0)
            return -1;
        taken += (size_t)step;
        if (stream->in == IN_WALK && stream->walk->meta.length > KEY_BYTES_MAX && on_long_meta(self, stream) < 0)
            return -1;
    }
    if (stream->in == IN_WALK)
        framing_count(self, stream, stream->walk->meta.length);
    if (stream->in == IN_WALK && stream->come == stream->length && finish(self, stream) < 0)
        return -1;
    return (Py_ssize_t)taken;
}
