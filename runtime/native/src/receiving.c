/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The callbacks of nghttp2 for received headers, data, ends of streams, and pings.
 */
#include "http2.h"

static const char TIMEOUT_NAME[] = "grpc-timeout";
/* The overhead of a header in the size of a header list: RFC 9113, section 6.5.2. */
#define HEADER_OVERHEAD 32
/* The limit for queued frames that answer the client (pings, resets, window updates). A client that causes more without
 * reading is flooding the server. */
#define OWED_BYTES_MAX ((size_t)1 << 20)
#define TIMEOUT_NONE (-1)
#define TIMEOUT_UNREADABLE (-2)
#define TIMEOUT_DIGITS_MAX 8
/* The reason of a GOAWAY. */
#define UNWANTED "unwanted_data"

static Stream *stream_of(nghttp2_session *http2, int32_t id)
{
    return nghttp2_session_get_stream_user_data(http2, id);
}

/* A timeout of gRPC in nanoseconds: 1 to 8 digits and a unit. */
static int64_t parse_timeout(const uint8_t *text, size_t length)
{
    static const char units[] = "HMSmun";
    static const int64_t unit_ns[] = {3600000000000, 60000000000, 1000000000, 1000000, 1000, 1};
    int64_t number = 0;
    const char *unit;
    size_t i;

    if (length < 2 || length > TIMEOUT_DIGITS_MAX + 1 || text[length - 1] == 0)
        return TIMEOUT_UNREADABLE;
    unit = strchr(units, text[length - 1]);
    if (unit == NULL)
        return TIMEOUT_UNREADABLE;
    for (i = 0; i < length - 1; i++) {
        if (text[i] < '0' || text[i] > '9')
            return TIMEOUT_UNREADABLE;
        number = number * 10 + (text[i] - '0');
    }
    if (number > INT64_MAX / unit_ns[unit - units])
        return INT64_MAX;
    return number * unit_ns[unit - units];
}

static int on_begin_headers(nghttp2_session *http2, const nghttp2_frame *frame, void *user_data)
{
    Session *self = user_data;
    Stream *stream;

    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    stream = stream_open(self, frame->hd.stream_id);
    if (stream == NULL)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    self->head.length = 0;
    self->head_size = 0;
    self->head_has = 0;
    self->timeout = TIMEOUT_NONE;
    return nghttp2_session_set_stream_user_data(http2, stream->id, stream) == 0 ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
}

static int on_header(nghttp2_session *http2, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                     const uint8_t *value, size_t value_length, uint8_t flags, void *user_data)
{
    Session *self = user_data;
    Stream *stream;

    (void)flags;
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    self->head_size += name_length + value_length + HEADER_OVERHEAD;
    if (self->head_size > self->header_list_bytes) {
        /* Sets our error code; without this, nghttp2 would send INTERNAL_ERROR. */
        nghttp2_submit_rst_stream(http2, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_ENHANCE_YOUR_CALM);
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    stream = stream_of(http2, frame->hd.stream_id);
    if (stream == NULL || !headers_take(self, stream, name, name_length, value, value_length)) {
        nghttp2_submit_rst_stream(http2, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_PROTOCOL_ERROR);
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    if (name_length == sizeof(TIMEOUT_NAME) - 1 && memcmp(name, TIMEOUT_NAME, name_length) == 0) {
        self->timeout = parse_timeout(value, value_length);
        return 0;
    }
    if (bytes_add(&self->head, name, name_length) < 0 || bytes_add(&self->head, "", 1) < 0 ||
        bytes_add(&self->head, value, value_length) < 0 || bytes_add(&self->head, "", 1) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

/* The client broke a rule on this stream: reset it, and report that if its request was reported. */
static int malformed(Session *self, Stream *stream)
{
    if (stream->over)
        return 0;
    if (stream->announced && tell(self, RESET, stream->id, PyLong_FromLong(NGHTTP2_PROTOCOL_ERROR)) < 0)
        return -1;
    stream->over = true;
    framing_stop(self, stream);
    stream_forget_output(self, stream);
    nghttp2_submit_rst_stream(self->http2, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_PROTOCOL_ERROR);
    return 0;
}

static int on_request(Session *self, Stream *stream)
{
    PyObject *value;

    value = Py_BuildValue("(y#L)", self->head.bytes, (Py_ssize_t)self->head.length, (long long)self->timeout);
    stream->announced = true;
    return tell_of(self, stream, REQUEST, value);
}

static int on_ping(Session *self, const nghttp2_ping *ping)
{
    if (!(ping->hd.flags & NGHTTP2_FLAG_ACK)) {
        Py_INCREF(Py_False);
        return tell(self, PING, 0, Py_False);
    }
    if (memcmp(ping->opaque_data, PING_SHUT_DOWN, PING_BYTES) == 0 && self->shutting_down) {
        /* Streams that the client had opened before it received GOAWAY have arrived by now. */
        self->shutting_down = false;
        nghttp2_submit_goaway(self->http2, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(self->http2),
                              NGHTTP2_NO_ERROR, NULL, 0);
        return 0;
    }
    if (memcmp(ping->opaque_data, PING_ALIVE, PING_BYTES) != 0)
        return 0;
    Py_INCREF(Py_True);
    return tell(self, PING, 0, Py_True);
}

/* The head of a request, its trailers, or the end of some data have come. */
static int on_part(Session *self, Stream *stream, const nghttp2_frame *frame)
{
    bool is_head = frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST;
    bool ended = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;

    if ((is_head && !headers_suffice(self)) || (ended && !headers_fit(stream, true)))
        return malformed(self, stream);
    if (frame->hd.type == NGHTTP2_HEADERS && !is_head && !ended)
        return malformed(self, stream); /* trailers end a request */
    if (is_head && on_request(self, stream) < 0)
        return -1;
    return ended ? framing_end(self, stream) : 0;
}

static int on_frame_recv(nghttp2_session *http2, const nghttp2_frame *frame, void *user_data)
{
    Session *self = user_data;
    Stream *stream;
    int failed = 0;

    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA:
        stream = stream_of(http2, frame->hd.stream_id);
        if (stream == NULL)
            return 0;
        failed = on_part(self, stream, frame);
        break;
    case NGHTTP2_SETTINGS:
        self->begun = true;
        break;
    case NGHTTP2_PING:
        failed = on_ping(self, &frame->ping);
        break;
    case NGHTTP2_GOAWAY:
        failed = tell(self, GOAWAY, 0, PyLong_FromUnsignedLong(frame->goaway.error_code));
        break;
    default:
        break;
    }
    return failed < 0 ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_data_chunk_recv(nghttp2_session *http2, uint8_t flags, int32_t id, const uint8_t *data, size_t length,
                              void *user_data)
{
    Session *self = user_data;
    Stream *stream = stream_of(http2, id);
    int failed;

    if (stream == NULL)
        return nghttp2_session_consume_connection(http2, length) == 0 ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
    stream->taken += length;
    failed = headers_fit(stream, false) ? framing_take(self, stream, data, length) : malformed(self, stream);
    if (failed < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (stream->held || flags & NGHTTP2_FLAG_END_STREAM) {
        /* No window update for bytes that will not arrive. */
        stream->unopened += stream->held ? length : 0;
        failed = nghttp2_session_consume_connection(http2, length);
    } else {
        failed = nghttp2_session_consume(http2, id, length);
    }
    return nghttp2_is_fatal(failed) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

static int on_stream_close(nghttp2_session *http2, int32_t id, uint32_t code, void *user_data)
{
    Session *self = user_data;
    Stream *stream = stream_of(http2, id);
    bool told;

    if (stream == NULL)
        return 0;
    told = !stream->announced || stream->complete || stream->over;
    stream_bury(self, stream);
    nghttp2_session_set_stream_user_data(http2, id, NULL);
    if (!told && tell(self, RESET, id, PyLong_FromUnsignedLong(code)) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

void receiving_callbacks(nghttp2_session_callbacks *callbacks)
{
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk_recv);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
}

/* The connection has failed: send GOAWAY if possible, and raise the error. */
static int broken(Session *self, int code)
{
    self->broken = true;
    nghttp2_session_terminate_session(self->http2, code == NGHTTP2_ERR_FLOODED ? NGHTTP2_ENHANCE_YOUR_CALM
                                                                               : NGHTTP2_PROTOCOL_ERROR);
    if (PyErr_Occurred() == NULL) {
        if (code == NGHTTP2_ERR_NOMEM || code == NGHTTP2_ERR_CALLBACK_FAILURE)
            PyErr_NoMemory();
        else
            PyErr_SetString(http2_error((PyObject *)self), nghttp2_strerror(code));
    }
    return -1;
}

/* Whether a frame is data of a stream that has ended, of which nghttp2 tells nothing. */
static bool is_unwanted(Session *self)
{
    const unsigned char *head = self->frame_head;
    int32_t id = (int32_t)((uint32_t)(head[5] & 0x7f) << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8]);

    return head[3] == NGHTTP2_DATA && id <= nghttp2_session_get_last_proc_stream_id(self->http2) &&
           stream_of(self->http2, id) == NULL;
}

/* Count the data of streams that had ended before these bytes came. It is discarded as long as the client may not know
 * of the end: false if more has come. While the connection ends, there are streams of which nothing is known. */
static bool count_unwanted(Session *self, const uint8_t *bytes, size_t length)
{
    while (length > 0) {
        size_t part;

        if (self->frame_left > 0) {
            part = length < self->frame_left ? length : self->frame_left;
            self->frame_left -= part;
        } else {
            part = FRAME_HEAD_BYTES - self->frame_come;
            if (part > length)
                part = length;
            memcpy(self->frame_head + self->frame_come, bytes, part);
            self->frame_come += part;
            if (self->frame_come == FRAME_HEAD_BYTES) {
                const unsigned char *head = self->frame_head;
                self->frame_come = 0;
                self->frame_left = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
                if (!self->shut_down && is_unwanted(self)) {
                    if (self->frame_left > self->unwanted)
                        return false;
                    self->unwanted -= self->frame_left;
                }
            }
        }
        bytes += part;
        length -= part;
    }
    return true;
}

/* End the connection of a client that goes on sending what nobody wants. */
static int refuse_unwanted(Session *self)
{
    self->terminating = true;
    return nghttp2_submit_goaway(self->http2, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(self->http2),
                                 NGHTTP2_ENHANCE_YOUR_CALM, (const uint8_t *)UNWANTED, sizeof(UNWANTED) - 1) == 0
               ? 0
               : broken(self, NGHTTP2_ERR_NOMEM);
}

static int take(Session *self, const Py_buffer *data)
{
    ssize_t taken;

    if (!count_unwanted(self, data->buf, (size_t)data->len))
        return refuse_unwanted(self);
    taken = nghttp2_session_mem_recv(self->http2, data->buf, (size_t)data->len);
    if (taken < 0)
        return broken(self, (int)taken);
    /* Streams that nghttp2 resets end when the frame is sent: send now, so that these events are reported too. */
    if (nghttp2_session_get_outbound_queue_size(self->http2) > 0) {
        if (flush_control(self) < 0)
            return broken(self, NGHTTP2_ERR_CALLBACK_FAILURE);
        if (self->out.length > OWED_BYTES_MAX)
            return broken(self, NGHTTP2_ERR_FLOODED);
    }
    return tell_newest(self, false);
}

PyObject *session_receive(Session *self, PyObject *data)
{
    Py_buffer buffer;
    PyObject *events;
    int failed = 0;

    if (self->busy != IDLE)
        return session_in_use();
    if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    if (self->http2 != NULL && !self->broken && !self->terminating) {
        self->busy = IN_RECEIVE;
        self->round++;
        failed = take(self, &buffer);
        self->busy = IDLE;
    }
    PyBuffer_Release(&buffer);
    events = self->events;
    self->events = NULL;
    if (failed < 0) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        Py_CLEAR(self->value);
        Py_CLEAR(events);
        let_go(self);
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    let_go(self);
    return events != NULL ? events : PyList_New(0);
}
