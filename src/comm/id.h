/* SPDX-License-Identifier: Apache-2.0
 *
 * What the 128 bytes of a struct tern_id mean: where rank 0 listens, and a cookie that tells its callers from
 * those of any other id that might use the address. Ids travel between processes, so the layout is
 * fixed: equal byte order on all ranks is assumed and checked by the magic. */
#ifndef TERN_ID_H
#define TERN_ID_H

#include "comm/socket.h"

enum { TERN_ID_VERSION = 1, TERN_COOKIE_BYTES = 16, TERN_ID_HEX_DIGITS = 2 * sizeof(struct tern_id) };
enum {
    TERN_ID_AGREED = 1, /* flag: made from an address; rank 0 binds it when it opens */
    TERN_ID_NAMED = 2   /* of a host by its name: rank 0 binds the port at all of its addresses */
};
enum { TERN_ID_ADDRESS_BYTES = 88, TERN_MAX_WAYS = 16 };

struct id_fields {
    uint64_t magic;
    uint32_t version;
    uint32_t flags;
    unsigned char cookie[TERN_COOKIE_BYTES];
    uint16_t family; /* 4 or 6: the IP version, because AF_INET6 differs between systems; 0: a name */
    uint16_t port;
    uint32_t unused; /* zero */
    /* The address, or the name, which each rank resolves where it is: hosts differ in what a name gives,
     * above all in what their own does. Then zeros. A name that is too long is resolved beforehand. */
    unsigned char address[TERN_ID_ADDRESS_BYTES];
};

enum tern_status terni_id_create(const char *interface, struct tern_id *id);
/* Listens there, at any free port. */
enum tern_status terni_id_create_at(const struct address *own, struct tern_id *id);
enum tern_status terni_id_from_address(const char *address, struct tern_id *id);
enum tern_status terni_id_from_environment(struct tern_id *id, int *rank, int *num_ranks);

/* Checks and unpacks: TERN_INVALID_ARGUMENT if the bytes are no id. Of a name the address is empty. */
enum tern_status terni_id_read(const struct tern_id *id, struct id_fields *fields, struct address *address);
/* At which rank 0 may be, at most TERN_MAX_WAYS: the address, or all that the name has. */
enum tern_status terni_id_ways(const struct id_fields *fields, struct address *ways, int *num_ways);
/* Hex digits as in TERN_ID, or host:port/cookie. */
enum tern_status terni_id_parse(const char *text, struct tern_id *id);
void terni_id_print(const struct tern_id *id, char text[TERN_ID_HEX_DIGITS + 1]);

/* The listening socket of an id for its rank 0; the caller owns it then. From terni_id_create in this
 * process, else TERN_ID_FD if it listens on the id's port, else bound now if it has an agreed address or
 * name. */
enum tern_status terni_id_take_listener(const struct tern_id *id, int *fd);

#endif
