/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The messages of a stream:
 *
 *   message = flag (1 byte: 0, or 1 for a compressed message) length (4 bytes, the highest first) bytes
 *
 * A message that arrives in one piece is copied once. For one that arrives in pieces, the allocation is a small
 * multiple of the bytes received so far, so that a false length cannot exhaust memory.
 */
#include "http2.h"

/* The message is allocated completely when this part of it has arrived, or so many bytes: copying more would take long,
 * and the pages of a large allocation exist only once they are filled. */
#define WHOLE_PART 4
#define MOVED_BYTES_MAX ((size_t)1 << 22)
/* Nobody is asked for the place of a message above this size before a part of it has arrived, or so many bytes: a client
 * must not get much memory by announcing a message alone. */
#define UNPROVEN_BYTES_MAX ((size_t)1 << 24)
#define PROVEN_PART 16
#define PROVEN_BYTES_MAX ((size_t)1 << 25)

/* Note how many bytes of an incomplete message lie in the heap. */
void framing_count(Session *self, Stream *stream, size_t gathered)
{
    if (stream->length <= UNCOUNTED_BYTES_MAX)
        gathered = 0;
    self->gathered += gathered - stream->gathered;
    stream->gathered = gathered;
}

/* Free what has come of an incomplete message, and ignore what follows. */
static void forget(Session *self, Stream *stream)
{
    stream->in = IN_NOTHING;
    walk_leave(stream);
    bytes_free(&stream->body);
    Py_CLEAR(stream->whole);
    framing_count(self, stream, 0);
}

/* Ignore everything that arrives on a stream from now on, and write nothing more to the buffers of `place`. */
void framing_stop(Session *self, Stream *stream)
{
    if (self->walking == stream)
        return; /* it is stopped when it comes out of that */
    forget(self, stream);
}

int framing_malformed(Session *self, Stream *stream, const char *why)
{
    forget(self, stream);
    return tell_of(self, stream, MALFORMED, PyUnicode_FromString(why));
}

static int begin_walk(Stream *stream)
{
    stream->in = IN_WALK;
    stream->come = 0;
    stream->walk = PyMem_Calloc(1, sizeof(*stream->walk));
    if (stream->walk != NULL)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* How much of a large message must have arrived before anybody is asked for its place. */
static size_t proof(const Stream *stream)
{
    if (stream->length <= UNPROVEN_BYTES_MAX)
        return 0;
    return stream->length / PROVEN_PART < PROVEN_BYTES_MAX ? stream->length / PROVEN_PART : PROVEN_BYTES_MAX;
}

/* All events of the stream have been handled, so `place` can be called now: walk through the bytes kept for it. */
static int stop_waiting(Session *self, Stream *stream)
{
    Bytes kept = stream->body;
    int failed;

    memset(&stream->body, 0, sizeof(stream->body));
    stream->waiting = false;
    failed = begin_walk(stream);
    if (failed == 0)
        failed = framing_take(self, stream, (const uint8_t *)kept.bytes, kept.length);
    bytes_free(&kept);
    return failed;
}

/* Report a complete message. */
static int tell_message(Session *self, Stream *stream, PyObject *message)
{
    stream->in = IN_PREFIX;
    stream->come = 0;
    stream->waiting = false;
    return tell_of(self, stream, stream->compressed ? COMPRESSED : MESSAGE, message);
}

/* Append to a message that arrives in pieces, at most the missing bytes. */
int framing_body(Session *self, Stream *stream, const uint8_t *data, size_t length)
{
    size_t come = stream->come + length;

    if (stream->whole == NULL && (come == stream->length || !stream->waiting) &&
        (stream->length <= WHOLE_BYTES_MAX || come >= stream->length / WHOLE_PART || come >= MOVED_BYTES_MAX)) {
        stream->whole = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)stream->length);
        if (stream->whole == NULL)
            return -1;
        if (stream->body.length > 0)
            memcpy(PyBytes_AsString(stream->whole), stream->body.bytes, stream->body.length);
        bytes_free(&stream->body);
    }
    if (stream->whole == NULL) {
        if (bytes_add(&stream->body, data, length) < 0)
            return -1;
    } else if (length > 0) {
        memcpy(PyBytes_AsString(stream->whole) + stream->come, data, length);
    }
    stream->come = come;
    if (come == stream->length) {
        PyObject *message = stream->whole;
        stream->whole = NULL;
        framing_count(self, stream, 0);
        return tell_message(self, stream, message);
    }
    framing_count(self, stream, come);
    return 0;
}

/* Gather a message of which these bytes have come, and were looked at, like any other. */
void framing_gather(Session *self, Stream *stream, Bytes *come)
{
    stream->in = IN_BODY;
    stream->body = *come;
    memset(come, 0, sizeof(*come));
    framing_count(self, stream, stream->body.length);
}

static int too_large(Session *self, Stream *stream)
{
    framing_stop(self, stream);
    return tell_of(self, stream, TOO_LARGE, PyLong_FromSize_t(stream->length));
}

/* Decide how to receive the message whose prefix has arrived. */
static int begin_message(Session *self, Stream *stream, const uint8_t *prefix)
{
    char why[48];

    stream->length = (size_t)prefix[1] << 24 | (size_t)prefix[2] << 16 | (size_t)prefix[3] << 8 | prefix[4];
    stream->come = 0;
    stream->compressed = prefix[0] == 1;
    if (prefix[0] > 1) {
        PyOS_snprintf(why, sizeof(why), "Bad GRPC frame type 0x%02x", prefix[0]);
        return framing_malformed(self, stream, why);
    }
    if (stream->length > stream->limit)
        return too_large(self, stream);
    if (stream->length <= self->large_bytes || stream->compressed) {
        stream->in = IN_BODY;
        return 0;
    }
    if (stream->round != self->round && proof(stream) == 0)
        return begin_walk(stream);
    stream->in = IN_BODY;
    stream->waiting = true;
    return 0;
}

/* Take the prefix, or a part of it. Returns the number of bytes taken, or -1. */
static Py_ssize_t take_prefix(Session *self, Stream *stream, const uint8_t *data, size_t length)
{
    size_t taken = PREFIX_BYTES - stream->come;

    if (stream->come == 0 && length >= PREFIX_BYTES)
        return begin_message(self, stream, data) < 0 ? -1 : PREFIX_BYTES;
    if (taken > length)
        taken = length;
    memcpy(stream->prefix + stream->come, data, taken);
    stream->come += taken;
    if (stream->come == PREFIX_BYTES && begin_message(self, stream, stream->prefix) < 0)
        return -1;
    return (Py_ssize_t)taken;
}

/* Take bytes of a message. Returns the number of bytes taken, or -1. */
static Py_ssize_t take_body(Session *self, Stream *stream, const uint8_t *data, size_t length)
{
    size_t taken = stream->length - stream->come;

    if (stream->length > stream->limit) /* set since the message began */
        return too_large(self, stream) < 0 ? -1 : (Py_ssize_t)length;
    if (taken > length)
        taken = length;
    if (taken == stream->length) {
        if (tell_message(self, stream, PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)taken)) < 0)
            return -1;
    } else if (framing_body(self, stream, data, taken) < 0) {
        return -1;
    }
    return (Py_ssize_t)taken;
}

/* Take the bytes that arrived on a stream. */
int framing_take(Session *self, Stream *stream, const uint8_t *data, size_t length)
{
    Py_ssize_t taken = 0;

    if (stream->waiting && stream->round != self->round && stream->come >= proof(stream) &&
        stop_waiting(self, stream) < 0)
        return -1;
    do {
        if (stream->over || stream->ended)
            framing_stop(self, stream);
        if (stream->in == IN_NOTHING)
            return 0;
        if (stream->in == IN_PREFIX) {
            taken = take_prefix(self, stream, data, length);
        } else if (stream->in == IN_BODY) {
            taken = take_body(self, stream, data, length);
        } else if (stream->in == IN_WALK) {
            self->walking = stream;
            taken = walk_take(self, stream, data, length);
            self->walking = NULL;
        } else {
            taken = (Py_ssize_t)(stream->length - stream->come);
            if ((size_t)taken > length)
                taken = (Py_ssize_t)length;
            stream->come += (size_t)taken;
            if (stream->come == stream->length) {
                stream->in = IN_PREFIX;
                stream->come = 0;
            }
        }
        if (taken < 0)
            return -1;
        data += taken;
        length -= (size_t)taken;
        /* A message may be complete before any of its body arrives: an empty one. */
    } while (length > 0 || (stream->in == IN_BODY && stream->come == stream->length));
    return 0;
}

/* The client has sent END_STREAM. */
int framing_end(Session *self, Stream *stream)
{
    bool inside = stream->in == IN_BODY || stream->in == IN_WALK || (stream->in == IN_PREFIX && stream->come > 0);

    stream->client_done = true;
    if (stream->over || !stream->announced)
        return 0;
    if (inside && framing_malformed(self, stream, "the stream ends inside of a message") < 0)
        return -1;
    return tell_end(self, stream->id);
}
