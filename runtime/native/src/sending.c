/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Collects the output of nghttp2. Frames without data and small data are copied together; large data are views in
 * between.
 */
#include "http2.h"

/* The size of the buffer that a connection keeps for its next output. Small messages rarely need more. */
#define OUT_KEPT_BYTES ((size_t)1 << 14)
/* nghttp2's default, which every client must accept. */
#define FRAME_BYTES_MIN ((size_t)16384)

/* Finish the current piece of copied bytes. */
static int out_flush(Session *self)
{
    PyObject *chunk;
    int failed;

    if (self->out.length == 0)
        return 0;
    chunk = PyBytes_FromStringAndSize(self->out.bytes, (Py_ssize_t)self->out.length);
    if (chunk == NULL)
        return -1;
    failed = PyList_Append(self->chunks, chunk);
    Py_DECREF(chunk);
    self->out.length = 0;
    if (self->out.capacity > OUT_KEPT_BYTES)
        bytes_free(&self->out);
    return failed;
}

static int out_view(Session *self, const Segment *segment, size_t length)
{
    PyObject *slice;
    int failed;

    if (out_flush(self) < 0)
        return -1;
    slice = PySequence_GetSlice(segment->view.obj, (Py_ssize_t)segment->sent, (Py_ssize_t)(segment->sent + length));
    if (slice == NULL)
        return -1;
    failed = PyList_Append(self->chunks, slice);
    Py_DECREF(slice);
    return failed;
}

/* Output `length` bytes of a stream's queued data. */
static int out_data(Session *self, Stream *stream, size_t length)
{
    while (length > 0) {
        Segment *segment = stream->first;
        size_t part = segment->length - segment->sent;
        int failed;

        if (part > length)
            part = length;
        if (segment->view.obj != NULL && part >= VIEW_BYTES)
            failed = out_view(self, segment, part);
        else
            failed = bytes_add(&self->out, (segment->view.obj != NULL ? (char *)segment->view.buf : segment->copied) +
                                               segment->sent, part);
        if (failed < 0)
            return -1;
        segment->sent += part;
        stream->queued -= part;
        stream->sent += part;
        self->queued -= part;
        length -= part;
        if (segment->sent == segment->length) {
            stream->first = segment->next;
            if (stream->first == NULL)
                stream->last = NULL;
            segment->next = self->spent;
            self->spent = segment;
        }
    }
    return 0;
}

static ssize_t on_send(nghttp2_session *http2, const uint8_t *data, size_t length, int flags, void *user_data)
{
    Session *self = user_data;

    (void)http2;
    (void)flags;
    return bytes_add(&self->out, data, length) < 0 ? NGHTTP2_ERR_CALLBACK_FAILURE : (ssize_t)length;
}

static int on_send_data(nghttp2_session *http2, nghttp2_frame *frame, const uint8_t *head, size_t length,
                        nghttp2_data_source *source, void *user_data)
{
    Session *self = user_data;
    Stream *stream = nghttp2_session_get_stream_user_data(http2, frame->hd.stream_id);

    (void)source;
    if (self->control_only || (self->terminating && !self->stalled)) {
        /* The frame stays before all later ones, including GOAWAY. */
        self->stalled = self->control_only;
        return NGHTTP2_ERR_WOULDBLOCK;
    }
    self->stalled = false;
    /* The stream may have been reset since nghttp2 created the frame. */
    if (stream == NULL || stream->queued < length)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (bytes_add(&self->out, head, FRAME_HEAD_BYTES) < 0 || out_data(self, stream, length) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

/* The largest DATA frame, apart from flow-control windows. */
static ssize_t on_frame_bytes(nghttp2_session *http2, uint8_t type, int32_t id, int32_t connection_window,
                              int32_t stream_window, uint32_t frame_bytes_max, void *user_data)
{
    const Stream *stream = nghttp2_session_get_stream_user_data(http2, id);
    size_t length = stream != NULL ? stream->queued : 0;

    (void)type;
    (void)connection_window;
    (void)stream_window;
    (void)user_data;
    if (length > frame_bytes_max)
        length = frame_bytes_max;
    if (length > SENT_FRAME_BYTES_MAX)
        length = SENT_FRAME_BYTES_MAX;
    return (ssize_t)(length > FRAME_BYTES_MIN ? length : FRAME_BYTES_MIN);
}

static int on_frame_send(nghttp2_session *http2, const nghttp2_frame *frame, void *user_data)
{
    Session *self = user_data;
    Stream *stream;

    if (frame->hd.type == NGHTTP2_GOAWAY && frame->goaway.error_code != NGHTTP2_NO_ERROR)
        self->terminating = true;
    /* The answer to the ping after this frame shows that the client has received it. */
    if (frame->hd.type == NGHTTP2_GOAWAY && self->shutting_down && !self->terminating)
        return nghttp2_submit_ping(http2, NGHTTP2_FLAG_NONE, PING_SHUT_DOWN) == 0 ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
    /* What the client may have sent before it knows: the window of the stream, or the initial one of HTTP/2. */
    if (frame->hd.type == NGHTTP2_RST_STREAM)
        self->unwanted += self->stream_window > NGHTTP2_INITIAL_WINDOW_SIZE ? self->stream_window
                                                                            : NGHTTP2_INITIAL_WINDOW_SIZE;
    if (frame->hd.type != NGHTTP2_HEADERS || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    stream = nghttp2_session_get_stream_user_data(http2, frame->hd.stream_id);
    if (stream == NULL)
        return 0;
    stream->complete = true;
    /* The response is complete, so the rest of the request is not needed: RFC 9113, section 8.1. */
    if (!stream->client_done &&
        nghttp2_submit_rst_stream(http2, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR) != 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

/* Headers that cannot be sent, because they are too long, leave the client without a response. */
static int on_frame_not_send(nghttp2_session *http2, const nghttp2_frame *frame, int code, void *user_data)
{
    (void)code;
    (void)user_data;
    if (frame->hd.type == NGHTTP2_HEADERS &&
        nghttp2_session_get_stream_user_data(http2, frame->hd.stream_id) != NULL &&
        nghttp2_submit_rst_stream(http2, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_INTERNAL_ERROR) != 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

void sending_callbacks(nghttp2_session_callbacks *callbacks)
{
    nghttp2_session_callbacks_set_send_callback(callbacks, on_send);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, on_send_data);
    nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, on_frame_bytes);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_frame_not_send);
}

/* Collect nghttp2's output. Returns 0, or -1 with an exception set. */
static int run(Session *self)
{
    int code = nghttp2_session_send(self->http2);

    if (code == 0)
        return 0;
    if (PyErr_Occurred() == NULL) {
        if (code == NGHTTP2_ERR_NOMEM || code == NGHTTP2_ERR_CALLBACK_FAILURE)
            PyErr_NoMemory();
        else
            PyErr_SetString(http2_error((PyObject *)self), nghttp2_strerror(code));
    }
    self->broken = true;
    return -1;
}

/* Take frames from nghttp2 up to the first data frame; `send` returns them. Called inside `receive`. */
int flush_control(Session *self)
{
    int failed;

    self->busy = IN_SEND;
    self->control_only = true;
    failed = run(self);
    self->control_only = false;
    self->busy = IN_RECEIVE;
    return failed;
}

PyObject *session_send(Session *self, PyObject *unused)
{
    PyObject *chunks, *released, *result = NULL;
    int failed = 0;

    (void)unused;
    if (self->busy != IDLE)
        return session_in_use();
    chunks = PyList_New(0);
    if (chunks == NULL)
        return NULL;
    if (self->http2 != NULL && !self->terminated) {
        self->busy = IN_SEND;
        self->chunks = chunks;
        failed = run(self);
        if (failed == 0)
            failed = out_flush(self);
        self->terminated = self->terminating;
        self->chunks = NULL;
        self->busy = IDLE;
    }
    if (failed == 0) {
        let_go(self);
        released = self->released;
        self->released = NULL;
        if (released == NULL)
            released = PyList_New(0);
        if (released != NULL)
            result = PyTuple_Pack(2, chunks, released);
        Py_XDECREF(released);
    }
    Py_DECREF(chunks);
    return result;
}
