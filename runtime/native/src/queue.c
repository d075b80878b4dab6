/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The queue of messages of a stream, as segments: small parts are copied together after the prefix, large parts are not
 * copied.
 */
#include "http2.h"

/* Up to this number of parts, no allocation is needed. */
#define PARTS_FEW 8

typedef struct {
    Segment *first, *last;
} Chain;

static void chain_add(Chain *chain, Segment *segment)
{
    if (chain->last != NULL)
        chain->last->next = segment;
    else
        chain->first = segment;
    chain->last = segment;
}

static Segment *new_segment(size_t length, size_t copied)
{
    Segment *segment = PyMem_Malloc(sizeof(*segment) + copied);

    if (segment == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memset(segment, 0, sizeof(*segment));
    segment->length = length;
    return segment;
}

/* A segment that refers to a part, by a memoryview of single bytes, which can be sliced. */
static Segment *view_segment(PyObject *part)
{
    PyObject *view = PyMemoryView_FromObject(part);
    Segment *segment = NULL;

    if (view != NULL && !PyBytes_CheckExact(part)) {
        PyObject *cast = PyObject_CallMethod(view, "cast", "s", "B");
        Py_DECREF(view);
        view = cast;
    }
    if (view != NULL)
        segment = new_segment(0, 0);
    if (segment != NULL && PyObject_GetBuffer(view, &segment->view, PyBUF_SIMPLE) < 0) {
        PyMem_Free(segment);
        segment = NULL;
    }
    if (segment != NULL)
        segment->length = (size_t)segment->view.len;
    Py_XDECREF(view);
    return segment;
}

/* A segment of the prefix, if there is one, and of small parts. */
static Segment *copied_segment(const unsigned char *prefix, const Py_buffer *parts, Py_ssize_t count)
{
    size_t length = prefix != NULL ? PREFIX_BYTES : 0;
    Segment *segment;
    char *at;
    Py_ssize_t i;

    for (i = 0; i < count; i++)
        length += (size_t)parts[i].len;
    segment = new_segment(length, length);
    if (segment == NULL)
        return NULL;
    at = segment->copied;
    if (prefix != NULL) {
        memcpy(at, prefix, PREFIX_BYTES);
        at += PREFIX_BYTES;
    }
    for (i = 0; i < count; i++) {
        if (parts[i].len > 0)
            memcpy(at, parts[i].buf, (size_t)parts[i].len);
        at += parts[i].len;
    }
    return segment;
}

/* Create the segments of a message. The last view holds `release`, or the last segment if it is due only when all is
 * sent. On failure some segments may already be queued. */
static int make_chain(Chain *chain, PyObject *parts, const Py_buffer *buffers, Py_ssize_t count,
                      const unsigned char *prefix, PyObject *release, bool until_sent)
{
    Segment *segment, *last_view = NULL;
    Py_ssize_t i = 0;

    do {
        Py_ssize_t small = i;
        while (small < count && buffers[small].len < VIEW_BYTES)
            small++;
        if (small > i || i == 0) {
            segment = copied_segment(i == 0 ? prefix : NULL, buffers + i, small - i);
            if (segment == NULL)
                return -1;
            if (segment->length > 0)
                chain_add(chain, segment);
            else
                PyMem_Free(segment);
        }
        if (small < count) {
            segment = last_view = view_segment(PyTuple_GetItem(parts, small));
            if (segment == NULL)
                return -1;
            chain_add(chain, segment);
            small++;
        }
        i = small;
    } while (i < count);
    if (until_sent)
        last_view = chain->last; /* there is one: for the prefix */
    if (last_view != NULL && release != Py_None) {
        Py_XINCREF(release);
        last_view->release = release;
    }
    return 0;
}

/* Queue the parts, whose buffers are known. */
static int queue_buffers(Session *self, Stream *stream, PyObject *parts, const Py_buffer *buffers, Py_ssize_t count,
                         PyObject *release, bool compressed, bool until_sent)
{
    Chain chain = {NULL, NULL};
    uint64_t length = 0, queued = 0;
    unsigned char prefix[PREFIX_BYTES];
    bool kept = until_sent;
    const Segment *segment;
    Py_ssize_t i;

    for (i = 0; i < count; i++)
        length += (uint64_t)buffers[i].len;
    if (length > MESSAGE_BYTES_MAX) {
        PyErr_SetString(PyExc_ValueError, "the message has more than 4 GiB");
        return -1;
    }
    prefix[0] = compressed;
    for (i = 1; i < PREFIX_BYTES; i++)
        prefix[i] = (unsigned char)(length >> (8 * (PREFIX_BYTES - 1 - i)));
    if (make_chain(&chain, parts, buffers, count, prefix, release, until_sent) < 0) {
        while (chain.first != NULL) {
            Segment *failed = chain.first;
            chain.first = failed->next;
            if (failed->view.obj != NULL)
                PyBuffer_Release(&failed->view);
            PyMem_Free(failed);
        }
        return -1;
    }
    for (segment = chain.first; segment != NULL; segment = segment->next) {
        queued += segment->length;
        kept = kept || segment->view.obj != NULL;
    }
    if (stream->last != NULL)
        stream->last->next = chain.first;
    else
        stream->first = chain.first;
    stream->last = chain.last;
    stream->queued += queued;
    self->queued += queued;
    return kept ? 0 : release_later(self, release);
}

int queue_message(Session *self, Stream *stream, PyObject *parts, PyObject *release, bool compressed, bool until_sent)
{
    Py_buffer few[PARTS_FEW], *buffers = few;
    PyObject *items = PySequence_Tuple(parts);
    Py_ssize_t count, held;
    int failed = -1, busy = self->busy;

    if (items == NULL)
        return -1;
    /* The stream must stay valid while Python code runs in here, so no method may be called. */
    self->busy = IN_SEND;
    count = PyTuple_Size(items);
    if (count > PARTS_FEW && (buffers = PyMem_Calloc((size_t)count, sizeof(*buffers))) == NULL) {
        PyErr_NoMemory();
        count = -1;
    }
    for (held = 0; held < count; held++)
        if (PyObject_GetBuffer(PyTuple_GetItem(items, held), &buffers[held], PyBUF_SIMPLE) < 0)
            break;
    if (held == count)
        failed = queue_buffers(self, stream, items, buffers, count, release, compressed, until_sent);
    while (held > 0)
        PyBuffer_Release(&buffers[--held]);
    if (buffers != few)
        PyMem_Free(buffers);
    Py_DECREF(items);
    self->busy = busy;
    return failed;
}
