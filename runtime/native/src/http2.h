/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The declarations that the files of _http2 share: the session, its streams, and the functions of each file.
 *
 * One rule keeps streams valid while they are used: no stream and no data to send is freed inside a call into nghttp2.
 * It is put into a list (`spent`, `buried`) until the call has returned. Python code that runs meanwhile (`place`, or a
 * destructor) may call the session as far as `place` may while it receives, and not at all while it sends (`busy`).
 *
 * Functions that return an int return 0, or -1 with a Python exception set, unless their comment says otherwise.
 */
#ifndef PYRUNTIME_HTTP2_H
#define PYRUNTIME_HTTP2_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Smaller parts are copied, which costs less than a view and another element of writev. */
#define VIEW_BYTES 4096
/* The largest frame to send, if the client allows it: nghttp2 allocates this much for each connection. */
#define SENT_FRAME_BYTES_MAX ((size_t)1 << 20)
/* Messages up to this size are allocated when their prefix has arrived: a false length then costs little memory. */
#define WHOLE_BYTES_MAX ((size_t)1 << 14)
/* An incomplete message up to this length does not count as gathered: the server's state can always be asked. */
#define UNCOUNTED_BYTES_MAX ((size_t)1 << 10)
/* The most raw contents of a request: each has at least 2 bytes on the wire, and a hundred times more in a tuple. */
#define RAWS_MAX 65536
/* The most bytes of a request besides the contents of its tensors: names, shapes, parameters. */
#define KEY_BYTES_MAX ((size_t)1 << 22)
/* gRPC's length prefix has 32 bits. */
#define MESSAGE_BYTES_MAX UINT32_MAX
#define PREFIX_BYTES 5
/* Of HTTP/2: length, kind, flags, stream. */
#define FRAME_HEAD_BYTES 9

/* The payload of our pings, which identifies their answers. */
#define PING_BYTES 8
#define PING_ALIVE ((const uint8_t *)"pr-alive")
#define PING_SHUT_DOWN ((const uint8_t *)"pr-leave")

enum { IDLE = 0, IN_RECEIVE, IN_SEND };

enum { REQUEST = 1, MESSAGE, COMPRESSED, PLACED, END, RESET, TOO_LARGE, MALFORMED, PING, GOAWAY };

/* What there is of the head that arrives. */
enum { HEAD_METHOD = 1, HEAD_SCHEME = 2, HEAD_PATH = 4, HEAD_NEEDED = 7, HEAD_AUTHORITY = 8, HEAD_FIELDS = 16 };
/* The length of a request that announces none. */
#define LENGTH_NONE (-1)

/* A growing byte buffer. */
typedef struct {
    char *bytes;
    size_t length;
    size_t capacity;
} Bytes;

/* A piece of the data that a stream sends: copied bytes, or a view of an object (view.obj is then a memoryview). */
typedef struct Segment {
    struct Segment *next;
    size_t length;
    size_t sent;
    Py_buffer view;
    PyObject *release;
    char copied[];
} Segment;

typedef struct {
    uint64_t offset;
    uint64_t length;
} Raw;

/* One large inference request while it arrives: see walk.c. */
typedef struct {
    enum { AT_TAG, AT_VARINT, AT_LENGTH, IN_FIELD, IN_RAW } at;
    unsigned int digits; /* bytes of a varint that have come */
    uint64_t number;     /* what they say */
    bool is_raw;         /* the length that comes is that of raw contents */
    bool placed;
    uint64_t left; /* bytes of this field that are still to come */
    Bytes meta;
    size_t field; /* where in meta this field began */
    Py_buffer destination;
    size_t ready;   /* bytes of the destination that may be written */
    PyObject *grow; /* asked for more of them; NULL if all are ready */
    size_t end; /* of what is in the destination */
    Raw *raws;
    size_t count;
    size_t capacity;
} Walk;

typedef struct Stream {
    struct Stream *next, *previous;
    int32_t id;
    /* Receiving. */
    enum { IN_PREFIX, IN_BODY, IN_WALK, IN_REFUSE, IN_NOTHING } in;
    unsigned char prefix[PREFIX_BYTES];
    bool compressed;
    size_t length; /* of the message */
    size_t come;   /* bytes of the message (or of its prefix) that have come */
    size_t limit;  /* of the length of a message */
    Bytes body;
    PyObject *whole; /* bytes of the message's length, of which `come` are filled */
    size_t gathered; /* bytes of an incomplete message that lie in the heap, if they count */
    Walk *walk;
    uint64_t round; /* the call of `receive` whose events hold the newest of this stream */
    bool waiting;   /* a large message, of which nobody is asked yet: it is kept as it comes */
    uint64_t taken; /* all bytes of data that have come */
    int64_t announced_length; /* of them, or LENGTH_NONE */
    uint64_t unopened; /* bytes by which the window is not opened again because the stream is held */
    bool held;
    bool announced;   /* REQUEST was told */
    bool client_done; /* it sends no more */
    /* Sending. */
    bool begun;    /* there is a head */
    bool ended;    /* no more messages */
    bool deferred; /* nghttp2 waits to be told that there is more */
    bool complete; /* all is sent */
    bool over;     /* reset by us: nothing more is told or sent */
    PyObject *trailers;
    Segment *first, *last;
    size_t queued;
    uint64_t sent; /* all bytes of messages that are sent */
} Stream;

typedef struct {
    PyObject_HEAD
    nghttp2_session *http2; /* NULL when closed */
    PyObject *place;
    size_t header_list_bytes;
    size_t message_bytes;
    size_t large_bytes;
    size_t alignment;
    /* IDLE; IN_RECEIVE: inside `receive`, where `place` may call methods; IN_SEND: where no code may. */
    int busy;
    bool begun;         /* the client has said that it speaks HTTP/2 */
    bool shut_down;     /* it was asked for */
    bool shutting_down; /* the answer to PING_SHUT_DOWN is awaited */
    bool broken;      /* the client's bytes are not looked at any more */
    bool terminating; /* GOAWAY goes, and nothing after it */
    bool terminated;  /* and is gone */
    Stream *streams;
    const Stream *walking; /* whose walk is in use */
    size_t open_streams;
    size_t queued;
    size_t gathered; /* of all streams */
    size_t stream_window;
    uint64_t unwanted; /* bytes that may still come on streams that we have reset */
    /* Where the client is in its frames: bytes of a head that have come, and bytes of the frame that are to come. */
    unsigned char frame_head[FRAME_HEAD_BYTES];
    size_t frame_come, frame_left;
    Stream *buried;
    Segment *spent;
    /* The headers of the arriving request; headers of several requests cannot interleave. */
    Bytes head;
    size_t head_size;
    unsigned int head_has; /* bits: HEAD_METHOD and others */
    int64_t timeout;
    uint64_t round; /* calls of `receive` so far */
    /* The events to report. The newest one is kept back, because END_STREAM may belong to it. */
    PyObject *events;
    PyObject *value;
    int kind;
    int32_t stream;
    /* The data to send. */
    Bytes out;
    PyObject *chunks; /* inside of `send`; a reference of its own to them */
    bool control_only; /* no data is sent now */
    bool stalled;      /* nghttp2 has a frame of data that was not sent for that reason */
    PyObject *released;
} Session;

/* module.c */
PyObject *http2_error(PyObject *session);

/* events.c */
int tell(Session *self, int kind, int32_t stream, PyObject *value);
int tell_of(Session *self, Stream *stream, int kind, PyObject *value);
int tell_end(Session *self, int32_t stream);
int tell_newest(Session *self, bool ended);

/* streams.c */
int bytes_add(Bytes *bytes, const void *more, size_t length);
void bytes_free(Bytes *bytes);
Stream *stream_open(Session *self, int32_t id);
Stream *stream_find(Session *self, PyObject *id);
void stream_bury(Session *self, Stream *stream);
void stream_forget_output(Session *self, Stream *stream);
int release_later(Session *self, PyObject *release);
void let_go(Session *self);

/* headers.c */
bool headers_take(Session *self, Stream *stream, const uint8_t *name, size_t name_length, const uint8_t *value,
                  size_t value_length);
bool headers_suffice(const Session *self);
bool headers_fit(const Stream *stream, bool ended);

/* receiving.c */
void receiving_callbacks(nghttp2_session_callbacks *callbacks);
PyObject *session_receive(Session *self, PyObject *data);

/* framing.c */
int framing_take(Session *self, Stream *stream, const uint8_t *data, size_t length);
int framing_end(Session *self, Stream *stream);
int framing_malformed(Session *self, Stream *stream, const char *why);
void framing_stop(Session *self, Stream *stream);
int framing_body(Session *self, Stream *stream, const uint8_t *data, size_t length);
void framing_gather(Session *self, Stream *stream, Bytes *come);
void framing_count(Session *self, Stream *stream, size_t gathered);

/* walk.c: returns the number of bytes taken, or -1. */
Py_ssize_t walk_take(Session *self, Stream *stream, const uint8_t *data, size_t length);
void walk_leave(Stream *stream);

/* infer.c */
PyObject *infer_split(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *infer_scatter(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *infer_count_fields(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *infer_pack(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *raws_tuple(const Raw *raws, size_t count);

/* sending.c */
void sending_callbacks(nghttp2_session_callbacks *callbacks);
int flush_control(Session *self);
PyObject *session_send(Session *self, PyObject *unused);

/* queue.c: queues a message of a stream. `release` is returned when nothing refers to the parts any more or, if the
 * parts are small, when all of the message is sent. */
int queue_message(Session *self, Stream *stream, PyObject *parts, PyObject *release, bool compressed, bool until_sent);

/* responses.c */
int submit_trailers(Session *self, Stream *stream);
PyObject *session_in_use(void);
PyObject *session_respond(Session *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *session_refuse(Session *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *session_begin(Session *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *session_message(Session *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *session_end(Session *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *session_reset(Session *self, PyObject *const *arguments, Py_ssize_t count);

/* session.c */
extern PyType_Spec session_spec;
#endif
