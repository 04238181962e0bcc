/* SPDX-License-Identifier: Apache-2.0
 *
 * Ids: made from a fresh listening socket, or from an address that all ranks agree on; read and printed. The
 * cookie of the first kind is random, that of the second a hash of the agreed text. It keeps strangers and
 * leftovers of other jobs out; it is no secret worth a cipher, and not the whole name of a communicator,
 * which gets another random part when it opens (comm.c). */
#include "comm/id.h"
#include "comm/listener.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const uint64_t id_magic = 0x3144496e72655402; /* also tells a foreign byte order */

static_assert(sizeof(struct id_fields) == sizeof(struct tern_id), "an id is 128 bytes on every rank");

/* Of an id that says nothing yet of where rank 0 is. */
static struct id_fields fields_of(uint32_t flags, const unsigned char *cookie)
{
    struct id_fields f;
    memset(&f, 0, sizeof f);
    f.magic = id_magic;
    f.version = TERN_ID_VERSION;
    f.flags = flags;
    memcpy(f.cookie, cookie, sizeof f.cookie);
    return f;
}

static void pack(const struct address *a, uint32_t flags, const unsigned char *cookie, struct tern_id *id)
{
    struct id_fields f = fields_of(flags, cookie);
    if (a->storage.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, &a->storage, sizeof v6);
        f.family = 6;
        f.port = ntohs(v6.sin6_port);
        memcpy(f.address, &v6.sin6_addr, 16);
    } else {
        struct sockaddr_in v4;
        memcpy(&v4, &a->storage, sizeof v4);
        f.family = 4;
        f.port = ntohs(v4.sin_port);
        memcpy(f.address, &v4.sin_addr, 4);
    }
    memcpy(id->bytes, &f, sizeof f);
}

/* Of a host whose name fits. */
static void pack_name(const char *name, unsigned port, const unsigned char *cookie, struct tern_id *id)
{
    struct id_fields f = fields_of(TERN_ID_AGREED | TERN_ID_NAMED, cookie);
    f.port = (uint16_t)port;
    memcpy(f.address, name, strlen(name));
    memcpy(id->bytes, &f, sizeof f);
}

/* Empty for a name. */
static struct address address_of(const struct id_fields *f)
{
    struct address a;
    memset(&a, 0, sizeof a);
    if (f->family == 6) {
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
        v6.sin6_port = htons(f->port);
        memcpy(&v6.sin6_addr, f->address, 16);
        memcpy(&a.storage, &v6, sizeof v6);
        a.bytes = sizeof v6;
    } else if (f->family == 4) {
        struct sockaddr_in v4 = {.sin_family = AF_INET};
        v4.sin_port = htons(f->port);
        memcpy(&v4.sin_addr, f->address, 4);
        memcpy(&a.storage, &v4, sizeof v4);
        a.bytes = sizeof v4;
    }
    return a;
}

enum tern_status terni_id_read(const struct tern_id *id, struct id_fields *fields, struct address *address)
{
    struct id_fields f;
    memcpy(&f, id->bytes, sizeof f);
    if (f.magic != id_magic) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "these 128 bytes are no id of Tern: they begin with %016llx",
                         (unsigned long long)f.magic);
    }
    if (f.version != TERN_ID_VERSION) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "the id has version %u, this library reads version %d",
                         f.version, TERN_ID_VERSION);
    }
    if ((f.family != 4 && f.family != 6 && (f.family != 0 || f.address[0] == 0)) || f.port == 0 ||
        (f.family == 0 && f.address[sizeof f.address - 1] != 0)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "the id is damaged: IP version %u, port %u", f.family,
                         f.port);
    }
    *address = address_of(&f);
    *fields = f;
    return TERN_OK;
}

/* The stream addresses of host and port, `most` of them. */
static enum tern_status resolve(const char *host, const char *port, int flags, int most, struct address *a,
                                int *num)
{
    struct addrinfo hints = {.ai_flags = flags, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(host, port, &hints, &found);
    if (error != 0) {
        return TERN_FAIL(flags & AI_NUMERICHOST ? TERN_INVALID_ARGUMENT : TERN_SYSTEM_ERROR,
                         "\"%s\" gives no address: %s", host, gai_strerror(error));
    }
    *num = 0;
    for (const struct addrinfo *i = found; i != NULL && *num < most; i = i->ai_next) {
        memset(&a[*num], 0, sizeof a[*num]);
        memcpy(&a[*num].storage, i->ai_addr, i->ai_addrlen);
        a[(*num)++].bytes = i->ai_addrlen;
    }
    freeaddrinfo(found);
    return TERN_OK;
}

static int is_link_local(const struct address *a)
{
    struct sockaddr_in6 v6;
    memcpy(&v6, &a->storage, sizeof v6);
    return a->storage.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

enum tern_status terni_id_ways(const struct id_fields *fields, struct address *ways, int *num_ways)
{
    char port[8];
    int num;
    *num_ways = 1;
    if (fields->family != 0) {
        ways[0] = address_of(fields);
        return TERN_OK;
    }
    snprintf(port, sizeof port, "%u", fields->port);
    TERN_TRY(resolve((const char *)fields->address, port, AI_NUMERICSERV, TERN_MAX_WAYS, ways, &num));
    *num_ways = 0;
    for (int i = 0; i < num; i++) {
        if (!is_link_local(&ways[i])) {
            ways[(*num_ways)++] = ways[i];
        }
    }
    return *num_ways > 0 ? TERN_OK
                         : TERN_FAIL(TERN_SYSTEM_ERROR, "\"%s\" has only link-local addresses",
                                     (const char *)fields->address);
}

static int is_wildcard(const struct address *a)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;
    if (a->storage.ss_family == AF_INET6) {
        memcpy(&v6, &a->storage, sizeof v6);
        return IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
    }
    memcpy(&v4, &a->storage, sizeof v4);
    return v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Other hosts are to call it: a wildcard is no address, and a link-local one needs an interface, which each
 * host numbers in its own way. */
static enum tern_status check_place(const char *what, const char *text, const struct address *a)
{
    if (is_wildcard(a) || is_link_local(a)) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s %s is %s address, by which other ranks cannot call", what,
                         text, is_wildcard(a) ? "a wildcard" : "a link-local");
    }
    return TERN_OK;
}

enum tern_status terni_id_create_at(const struct address *own, struct tern_id *id)
{
    unsigned char cookie[TERN_COOKIE_BYTES];
    struct address asked = *own, bound;
    enum tern_status status;
    int fd;
    terni_address_clear_port(&asked);
    if (getrandom(cookie, sizeof cookie, 0) != (ssize_t)sizeof cookie) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "no random bytes for a cookie: %m");
    }
    TERN_TRY(terni_listen(&asked, &bound, &fd));
    status = terni_listener_keep(cookie, fd);
    if (status != TERN_OK) {
        close(fd);
        return status;
    }
    pack(&bound, 0, cookie, id);
    return TERN_OK;
}

enum tern_status terni_id_create(const char *interface, struct tern_id *id)
{
    struct address asked;
    int num;
    if (interface == NULL) {
        interface = terni_env(TERN_ENV_INTERFACE);
    }
    TERN_TRY(resolve(interface, "0", AI_NUMERICHOST | AI_NUMERICSERV, 1, &asked, &num));
    TERN_TRY(check_place("interface", interface, &asked));
    return terni_id_create_at(&asked, id);
}

/* Whether `host` is an address and no name. */
static int is_number(const char *host)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int is_one = getaddrinfo(host, NULL, &hints, &found) == 0;
    if (is_one) {
        freeaddrinfo(found);
    }
    return is_one;
}

/* FNV-1a from two starting points: a fingerprint of the agreed text. */
static void hash_cookie(const char *text, unsigned char *cookie)
{
    uint64_t h[2] = {0xcbf29ce484222325, 0x9ae16a3b2f90404f};
    for (int i = 0; i < 2; i++) {
        for (const char *c = text; *c != '\0'; c++) {
            h[i] = (h[i] ^ (unsigned char)*c) * 0x100000001b3;
        }
    }
    memcpy(cookie, h, TERN_COOKIE_BYTES);
}

enum tern_status terni_id_from_address(const char *address, struct tern_id *id)
{
    char host[256];
    char port[8];
    unsigned char cookie[TERN_COOKIE_BYTES];
    struct address a;
    int num, is_v6 = address[0] == '[';
    const char *host_begin = address + is_v6;
    const char *host_end = strchr(host_begin, is_v6 ? ']' : ':');
    const char *colon = host_end != NULL ? host_end + is_v6 : NULL;
    const char *slash = colon != NULL ? strchr(colon, '/') : NULL;
    size_t host_bytes, port_bytes;
    unsigned number = 0;
    if (colon == NULL || *colon != ':' || slash == NULL || slash[1] == '\0' || host_end == host_begin) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "\"%s\" is not host:port/cookie or [v6]:port/cookie",
                         address);
    }
    host_bytes = (size_t)(host_end - host_begin);
    port_bytes = (size_t)(slash - colon - 1);
    if (host_bytes >= sizeof host) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "the host name in \"%s\" is longer than %zu bytes", address,
                         sizeof host - 1);
    }
    for (size_t i = 0; i < port_bytes && i < 6; i++) {
        number = colon[1 + i] >= '0' && colon[1 + i] <= '9' ? number * 10 + (unsigned)(colon[1 + i] - '0')
                                                            : 1000000;
    }
    if (port_bytes == 0 || port_bytes > 5 || number == 0 || number > 65535) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "the port in \"%s\" is not a number of 1 to 65535", address);
    }
    memcpy(host, host_begin, host_bytes);
    host[host_bytes] = '\0';
    memcpy(port, colon + 1, port_bytes);
    port[port_bytes] = '\0';
    /* A name that nobody knows is refused here already. */
    TERN_TRY(resolve(host, port, AI_NUMERICSERV | (is_v6 ? AI_NUMERICHOST : 0), 1, &a, &num));
    hash_cookie(slash + 1, cookie);
    if (is_v6 || is_number(host)) {
        TERN_TRY(check_place("host", host, &a));
        pack(&a, TERN_ID_AGREED, cookie, id);
    } else if (host_bytes < TERN_ID_ADDRESS_BYTES) {
        pack_name(host, number, cookie, id);
    } else {
        pack(&a, TERN_ID_AGREED | TERN_ID_NAMED, cookie, id);
    }
    return TERN_OK;
}

void terni_id_print(const struct tern_id *id, char text[TERN_ID_HEX_DIGITS + 1])
{
    for (size_t i = 0; i < sizeof id->bytes; i++) {
        text[2 * i] = "0123456789abcdef"[id->bytes[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[id->bytes[i] & 15];
    }
    text[TERN_ID_HEX_DIGITS] = '\0';
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

enum tern_status terni_id_parse(const char *text, struct tern_id *id)
{
    struct tern_id parsed;
    struct id_fields fields;
    struct address address;
    size_t num_digits = strspn(text, "0123456789abcdefABCDEF");
    if (text[num_digits] != '\0') {
        return terni_id_from_address(text, id);
    }
    if (num_digits != TERN_ID_HEX_DIGITS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "an id has %d hex digits, not %zu", (int)TERN_ID_HEX_DIGITS,
                         num_digits);
    }
    for (size_t i = 0; i < sizeof parsed.bytes; i++) {
        parsed.bytes[i] = (unsigned char)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    }
    TERN_TRY(terni_id_read(&parsed, &fields, &address));
    *id = parsed;
    return TERN_OK;
}

enum tern_status terni_id_from_environment(struct tern_id *id, int *rank, int *num_ranks)
{
    static const enum terni_variable needed[] = {TERN_ENV_ID, TERN_ENV_RANK, TERN_ENV_NUM_RANKS};
    uint64_t r, n;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (terni_env(needed[i])[0] == '\0') {
            return TERN_FAIL(TERN_BAD_STATE, "%s is not set: was this started by tern-run?",
                             terni_env_name(needed[i]));
        }
    }
    TERN_TRY(terni_env_uint(TERN_ENV_RANK, INT32_MAX, &r));
    TERN_TRY(terni_env_uint(TERN_ENV_NUM_RANKS, INT32_MAX, &n));
    if (n == 0 || r >= n) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "TERN_RANK=%llu is no rank of TERN_NUM_RANKS=%llu",
                         (unsigned long long)r, (unsigned long long)n);
    }
    TERN_TRY(terni_id_parse(terni_env(TERN_ENV_ID), id));
    *rank = (int)r;
    *num_ranks = (int)n;
    return TERN_OK;
}
