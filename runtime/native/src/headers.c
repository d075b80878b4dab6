/*
 * SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The rules of RFC 9113, sections 8.2 and 8.3, for the head of a request, and its content-length.
 *
 * nghttp2 could check them, but it checks all of them or none. Two are not kept by clients of gRPC, and gRPC's own
 * servers accept both: values of metadata begin or end with a blank, and a request that checks health has neither
 * :authority nor host.
 */
#include "http2.h"

/* Headers of one connection: RFC 9113, section 8.2.2. */
static const char *const of_connection[] = {
    "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade",
};
/* A length with more digits is refused. */
#define LENGTH_DIGITS_MAX 18

static bool is_text(const uint8_t *bytes, size_t length, const char *text)
{
    return length == strlen(text) && memcmp(bytes, text, length) == 0;
}

/* The bit of a pseudo-header of requests, or 0. */
static unsigned int pseudo(const uint8_t *name, size_t length)
{
    if (is_text(name, length, ":method"))
        return HEAD_METHOD;
    if (is_text(name, length, ":scheme"))
        return HEAD_SCHEME;
    if (is_text(name, length, ":path"))
        return HEAD_PATH;
    return is_text(name, length, ":authority") ? HEAD_AUTHORITY : 0;
}

static bool take_length(Stream *stream, const uint8_t *value, size_t length)
{
    int64_t number = 0;
    size_t i;

    if (length == 0 || length > LENGTH_DIGITS_MAX || stream->announced_length != LENGTH_NONE)
        return false;
    for (i = 0; i < length; i++) {
        if (value[i] < '0' || value[i] > '9')
            return false;
        number = number * 10 + (value[i] - '0');
    }
    stream->announced_length = number;
    return true;
}

/* Whether the request may have this header, after those that came before. */
bool headers_take(Session *self, Stream *stream, const uint8_t *name, size_t name_length, const uint8_t *value,
                  size_t value_length)
{
    size_t i;

    if (!nghttp2_check_header_name(name, name_length) || !nghttp2_check_header_value(value, value_length))
        return false;
    if (name[0] == ':') {
        unsigned int bit = pseudo(name, name_length);
        if (bit == 0 || value_length == 0 || self->head_has & (bit | HEAD_FIELDS))
            return false;
        self->head_has |= bit;
        return true;
    }
    self->head_has |= HEAD_FIELDS;
    for (i = 0; i < sizeof(of_connection) / sizeof(*of_connection); i++)
        if (is_text(name, name_length, of_connection[i]))
            return false;
    if (is_text(name, name_length, "te"))
        return is_text(value, value_length, "trailers");
    return !is_text(name, name_length, "content-length") || take_length(stream, value, value_length);
}

/* Whether the head that is complete now has what a request needs. */
bool headers_suffice(const Session *self)
{
    return (self->head_has & HEAD_NEEDED) == HEAD_NEEDED;
}

/* Whether the data that has come so far, or all data of a request that has `ended`, is as long as was announced. */
bool headers_fit(const Stream *stream, bool ended)
{
    uint64_t announced = (uint64_t)stream->announced_length;

    if (stream->announced_length == LENGTH_NONE)
        return true;
    return ended ? stream->taken == announced : stream->taken <= announced;
}
