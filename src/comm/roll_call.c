/* SPDX-License-Identifier: Apache-2.0
 *
 * The lowest rank that is there decides. Each rank calls those below it, lowest first, and listens for
 * those above:
 *
 *     rank r -> c < r   CALL                 r is here; the id at which it would welcome a communicator
 *     rank r -> a > r   KNOCK                says nothing; r leads, and would know whether a is there
 *     c -> r            HERE                 c is in the call, too: r waits for it
 *     c -> r            ROLL, or VERDICT     what was decided, by c or by whom c called
 *
 * A rank below that refuses has gone, and so has one that was in the call and closes its connection. A door
 * with more callers than it can hear at once lets them wait; where one closes on a call before it has
 * answered, it is knocked at once more. A rank that is silent or out of reach (stopped, its host off, no
 * route to it) may still come: after a short while the next is called besides, and when the terms' time is
 * over it counts as lost. A rank that has no socket itself takes nobody for lost, but fails. Who has no rank
 * below it left leads. It knocks at all doors above it that have not called, to learn at once which are
 * closed, and decides when every rank has called or gone, or the time is over; a rank below that comes late
 * takes the lead back. A connection that was made while its door was being closed may stand for ever on this
 * side: only what is sent is answered with a reset, and so a frame is. Ranks pass on what they hear to those
 * who called them, so that nobody who was in the call goes on with a list of its own: a rank that is not in
 * the list it hears has been left out, and fails.
 *
 * A door's port at which somebody else listens since its rank has gone is a silent rank, too. The ids of a
 * call are kept apart from doors; other programs, and other communicators' doors, are not.
 *
 * What it cannot do is tell a lost rank from a lost cable: each side of a network that is cut decides for
 * itself. The terms' min_ranks lets a caller forbid that.
 *
 * One long file, because connections both ways and who leads are one state, and one loop waits for all of
 * it. */
#include "comm/roll_call.h"
#include "comm/lobby.h"
#include "comm/id.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Types of frames. */
enum { FRAME_CALL = 0x4c4c4143, FRAME_HERE = 2, FRAME_ROLL = 3, FRAME_VERDICT = 4, FRAME_KNOCK = 5 };

static const uint64_t ms = 1000000, quiet_ns = 500 * 1000000ull, tick_ns = 50 * 1000000ull;

struct call {
    unsigned char cookie[TERN_COOKIE_BYTES]; /* the communicator's */
    struct tern_id id;
};
static_assert(sizeof(struct call) <= TERN_GUEST_BYTES, "a guest may say as much");

/* How far this rank's connection to another has come. */
enum reach {
    REACH_UNTRIED,
    REACH_AGAIN, /* there was no way; tried again each tick */
    REACH_KNOCKING,
    REACH_OPEN,
    REACH_HERE,
    REACH_GONE
};

struct seat {
    struct link out, in; /* to the rank; from it, once it has called */
    enum reach reach;
    uint64_t tried_ns; /* when its door was last knocked at, or a connection lost */
    uint64_t since_ns; /* of the latest news by `out`; before any, of the first knock */
    int is_doubted;    /* it closed before it had answered, and its door was knocked at once more */
    struct tern_id id; /* of its call */
};

/* Whose link an entry of the list for poll is. */
struct polled {
    int rank, is_in;
};

struct roll_call {
    struct tern_comm *comm;
    const struct roll_terms *terms;
    uint64_t patience_ns, lead_ns; /* lead_ns: since when this rank leads; 0: it does not */
    struct seat *seats;            /* [num_ranks] */
    struct pollfd *fds;            /* [1 + TERN_MOST_GUESTS + 2 * num_ranks] */
    struct polled *polled;         /* as many; of links */
    struct lobby lobby;            /* have not called yet, or have only knocked */
    struct call call;              /* this rank's */
    int is_over;
    enum tern_status verdict;           /* once it is over */
    char sentence[TERN_SENTENCE_BYTES]; /* of a verdict that is no success */
    char *news;                         /* of a success: an id, then [num_ranks] marks */
    size_t news_bytes;
};

static int num_ranks_of(const struct roll_call *c) { return c->comm->num_ranks; }

/* ---- Towards other ranks ---- */

/* Only a refusal says that rank r has gone. A shortage is this rank's own, and what else is in the way may
 * pass. */
static enum tern_status not_reached(struct roll_call *c, int r, int error)
{
    struct seat *s = &c->seats[r];
    int is_gone = error == ECONNREFUSED || error == ECONNRESET, is_first = s->tried_ns == s->since_ns;
    if (terni_is_shortage(error)) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "rank %d has no socket to call rank %d: %s", c->comm->rank, r,
                         strerror(error));
    }
    if (is_gone || is_first) {
        TERN_LOG(TERN_LOG_INFO, "roll call: rank %d cannot reach rank %d: %s", c->comm->rank, r,
                 strerror(error));
    }
    terni_link_close(&s->out);
    s->reach = is_gone ? REACH_GONE : REACH_AGAIN;
    return TERN_OK;
}

/* Begins to connect, and says so by the state. */
static enum tern_status knock(struct roll_call *c, int r)
{
    struct seat *s = &c->seats[r];
    struct id_fields fields;
    struct address a;
    int fd;
    s->tried_ns = terni_clock_ns();
    s->since_ns = s->reach == REACH_AGAIN ? s->since_ns : s->tried_ns;
    s->reach = REACH_KNOCKING;
    TERN_TRY(terni_id_read(&c->comm->cards[r].door, &fields, &a));
    fd = socket(a.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return not_reached(c, r, errno);
    }
    terni_socket_tune(fd);
    terni_link_init(&s->out, fd);
    if (connect(fd, (const struct sockaddr *)&a.storage, a.bytes) != 0 && errno != EINPROGRESS) {
        return not_reached(c, r, errno);
    }
    return TERN_OK;
}

static void lose(struct seat *s)
{
    terni_link_close(&s->out);
    s->reach = REACH_GONE;
}

/* A connection that stood was closed. A rank that was in the call has left it, or died. One that had not
 * answered may also have had too many guests: its door will tell, which is knocked at again. A rank below
 * gets one more knock, in the time that it has: somebody else may listen at its port and close whatever
 * comes. */
static void lose_open(struct roll_call *c, int r)
{
    struct seat *s = &c->seats[r];
    int is_above = r > c->comm->rank, is_unheard = s->reach == REACH_OPEN && !s->is_doubted;
    lose(s);
    if (is_above || is_unheard) {
        s->reach = is_above ? REACH_UNTRIED : REACH_AGAIN;
        s->is_doubted = 1;
        s->tried_ns = terni_clock_ns();
    }
}

/* The connection stands, or failed. Ranks below hear this rank's call; those above, that somebody knocks. */
static enum tern_status knocked(struct roll_call *c, int r)
{
    struct seat *s = &c->seats[r];
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(s->out.fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) {
        error = errno;
    }
    if (error != 0) {
        return not_reached(c, r, error);
    }
    s->reach = REACH_OPEN;
    if (r < c->comm->rank) {
        terni_link_put(&s->out, FRAME_CALL, (uint32_t)c->comm->rank, 0, &c->call, sizeof c->call);
    } else {
        terni_link_put(&s->out, FRAME_KNOCK, 0, 0, NULL, 0);
    }
    terni_link_send(&s->out);
    return TERN_OK;
}

/* Where the data of a frame from a rank below go; NULL if there is no such frame. */
static char *place_for(struct roll_call *c, const struct frame *in)
{
    if (in->type == FRAME_HERE && in->bytes == 0) {
        return c->sentence;
    }
    if (in->type == FRAME_ROLL && in->bytes == c->news_bytes) {
        return c->news;
    }
    if (in->type == FRAME_VERDICT && in->bytes < sizeof c->sentence) {
        memset(c->sentence, 0, sizeof c->sentence);
        return c->sentence;
    }
    return NULL;
}

/* What rank r says of the call. A verdict that is no failure known here leaves nothing to go on with. */
static void hear_verdict(struct roll_call *c, int r)
{
    int32_t value = (int32_t)c->seats[r].out.in.value;
    c->verdict = (enum tern_status)value;
    if (!terni_status_is_failure(value)) {
        c->verdict = TERN_MISMATCH;
        snprintf(c->sentence, sizeof c->sentence, "rank %d sent a verdict of unknown status %d", r, value);
    }
}

static void read_below(struct roll_call *c, int r)
{
    struct seat *s = &c->seats[r];
    while (!c->is_over) {
        switch (terni_link_recv(&s->out)) {
        case LINK_AGAIN:
            return;
        case LINK_CLOSED:
            lose_open(c, r);
            return;
        case LINK_HEADER:
            s->out.in_data = place_for(c, &s->out.in);
            if (s->out.in_data == NULL) {
                lose(s);
                return;
            }
            break;
        case LINK_FRAME:
            s->since_ns = terni_clock_ns();
            s->reach = REACH_HERE;
            c->is_over = s->out.in.type != FRAME_HERE;
            c->verdict = TERN_OK;
            if (s->out.in.type == FRAME_VERDICT) {
                hear_verdict(c, r);
            }
            break;
        }
    }
}

/* ---- From other ranks ---- */

/* A rank above has called: it takes its seat, also anew. */
static void seat(struct roll_call *c, int i)
{
    const struct guest *g = &c->lobby.guests[i];
    uint32_t r = g->link.in.value;
    struct call call;
    struct seat *s;
    memcpy(&call, g->said, sizeof call);
    if (memcmp(call.cookie, c->call.cookie, sizeof c->call.cookie) != 0 || r <= (uint32_t)c->comm->rank ||
        r >= (uint32_t)num_ranks_of(c)) {
        terni_lobby_drop(&c->lobby, i, 0);
        return;
    }
    s = &c->seats[r];
    terni_link_close(&s->in);
    s->in = g->link;
    s->id = call.id;
    terni_lobby_drop(&c->lobby, i, 1);
    terni_link_put(&s->in, FRAME_HERE, 0, 0, NULL, 0);
    terni_link_send(&s->in);
}

static void hear(struct roll_call *c, int i)
{
    const struct frame *in = &c->lobby.guests[i].link.in;
    for (;;) {
        switch (terni_lobby_recv(&c->lobby, i)) {
        case LINK_AGAIN:
            return;
        case LINK_CLOSED:
            terni_lobby_drop(&c->lobby, i, 0);
            return;
        case LINK_HEADER:
            if ((in->type != FRAME_CALL || in->bytes != sizeof(struct call)) &&
                (in->type != FRAME_KNOCK || in->bytes != 0)) {
                terni_lobby_drop(&c->lobby, i, 0);
                return;
            }
            break;
        case LINK_FRAME:
            if (in->type == FRAME_CALL) {
                seat(c, i);
            }
            return; /* who has only knocked says no more, or waits for the next look */
        }
    }
}

/* A rank above that has called says nothing more; it can only go. */
static void read_above(struct seat *s)
{
    if (terni_link_recv(&s->in) != LINK_AGAIN) {
        terni_link_close(&s->in);
    }
}

static int has_called(const struct seat *s) { return s->in.fd >= 0; }

/* ---- Who leads, and what it decides ---- */

/* 0 for what came after `now` was taken. */
static uint64_t since(uint64_t then_ns, uint64_t now) { return now > then_ns ? now - then_ns : 0; }

/* Whether nothing more is to be expected of a rank below. One that was in the call is waited for longer: it
 * may itself wait for one below and then for those above. */
static int is_lost(const struct roll_call *c, const struct seat *s, uint64_t now)
{
    switch (s->reach) {
    case REACH_UNTRIED:
        return 0;
    case REACH_GONE:
        return 1;
    case REACH_HERE:
        return since(s->since_ns, now) > 3 * c->patience_ns;
    default:
        return since(s->since_ns, now) > c->patience_ns;
    }
}

static int is_due(const struct seat *s, uint64_t now)
{
    return (s->reach == REACH_UNTRIED || s->reach == REACH_AGAIN) && since(s->tried_ns, now) >= tick_ns;
}

/* Calls the next rank below once all before it have gone or been quiet, and as many at a time as have been:
 * of a hundred that are silent the last is called after seven short whiles, not a hundred. *are_lost: all
 * below are lost. */
static enum tern_status call_below(struct roll_call *c, uint64_t now, int *are_lost)
{
    int num_quiet = 0, num_new = 0;
    *are_lost = 1;
    for (int r = 0; r < c->comm->rank; r++) {
        struct seat *s = &c->seats[r];
        if (is_due(s, now)) {
            TERN_TRY(knock(c, r));
        }
        *are_lost = *are_lost && is_lost(c, s, now);
        if (s->reach == REACH_GONE) {
            continue;
        }
        if (!is_lost(c, s, now) && (s->reach == REACH_HERE || since(s->since_ns, now) < quiet_ns)) {
            if (s->reach == REACH_HERE || num_new++ == num_quiet) {
                break;
            }
        } else {
            num_quiet++;
        }
    }
    return TERN_OK;
}

static enum tern_status judge(struct roll_call *c, enum tern_status status, const char *sentence)
{
    snprintf(c->sentence, sizeof c->sentence, "%.*s", (int)sizeof c->sentence - 1, sentence);
    c->verdict = status;
    c->is_over = 1;
    return status;
}

/* Fills in the marks; returns how many are chosen. */
static int mark_all(struct roll_call *c, unsigned char *marks)
{
    const struct tern_comm *comm = c->comm;
    int num_chosen = 0;
    for (int r = 0; r < comm->num_ranks; r++) {
        marks[r] = r == comm->rank || has_called(&c->seats[r]) ? ROLL_CHOSEN : ROLL_ABSENT;
    }
    for (int r = 0; c->terms->whole_domains && r < comm->num_ranks; r++) {
        for (int q = 0; marks[r] == ROLL_ABSENT && q < comm->num_ranks; q++) {
            if (comm->domain_of[q] == comm->domain_of[r] && marks[q] == ROLL_CHOSEN) {
                marks[q] = ROLL_SPARE;
            }
        }
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        num_chosen += marks[r] == ROLL_CHOSEN;
    }
    return num_chosen;
}

static void decide(struct roll_call *c)
{
    struct tern_comm *comm = c->comm;
    unsigned char *marks = (unsigned char *)c->news + sizeof(struct tern_id);
    unsigned char is_late[TERN_MAX_BOOT_RANKS];
    char late[TERN_SENTENCE_BYTES], text[2 * TERN_SENTENCE_BYTES];
    int num_chosen = mark_all(c, marks);
    const unsigned char *first = (const unsigned char *)memchr(marks, ROLL_CHOSEN, (size_t)comm->num_ranks);
    for (int r = 0; r < comm->num_ranks; r++) {
        is_late[r] = marks[r] == ROLL_ABSENT;
    }
    terni_late_print(is_late, NULL, comm->num_ranks, c->terms->timeout_ms, late);
    if (num_chosen == 0 || num_chosen < (int)c->terms->min_ranks) {
        snprintf(text, sizeof text, "%s; %d of %d ranks could go on, and %u must", late, num_chosen,
                 comm->num_ranks, c->terms->min_ranks > 0 ? c->terms->min_ranks : 1);
        judge(c, TERN_TIMEOUT, text);
        return;
    }
    memcpy(c->news, first == marks + comm->rank ? &c->call.id : &c->seats[first - marks].id,
           sizeof(struct tern_id));
    judge(c, TERN_OK, "");
}

/* As long as no rank below is there. */
static enum tern_status lead(struct roll_call *c, uint64_t now)
{
    int is_complete = 1;
    c->lead_ns = c->lead_ns != 0 ? c->lead_ns : now;
    for (int r = c->comm->rank + 1; r < num_ranks_of(c); r++) {
        struct seat *s = &c->seats[r];
        if (has_called(s)) { /* a call may be an old one, of a rank that has given up since */
            read_above(s);
        }
        if (has_called(s) &&
            s->out.fd >= 0) { /* it is there: the knock has served, and one socket is enough */
            terni_link_close(&s->out);
            s->reach = REACH_UNTRIED;
            s->tried_ns = now;
        }
        if (!has_called(s) && is_due(s, now)) {
            TERN_TRY(knock(c, r));
        }
        is_complete = is_complete && (has_called(s) || s->reach == REACH_GONE);
    }
    if (is_complete || since(c->lead_ns, now) > c->patience_ns) {
        decide(c);
    }
    return TERN_OK;
}

/* ---- The id of a call ---- */

static int is_door(const struct tern_comm *comm, const struct tern_id *id)
{
    struct id_fields fields;
    struct address own, door;
    if (terni_id_read(id, &fields, &own) != TERN_OK) {
        return 0;
    }
    for (int r = 0; r < comm->num_ranks; r++) {
        if (terni_id_read(&comm->cards[r].door, &fields, &door) == TERN_OK && door.bytes == own.bytes &&
            memcmp(&door.storage, &own.storage, own.bytes) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Not where a rank that has closed had its door: a system may give the port again at once, and who knocks
 * there would find a listener that is silent, not that the rank has gone. */
static enum tern_status create_apart(const struct tern_comm *comm, const struct address *address,
                                     struct tern_id *own)
{
    struct tern_id taken;
    enum tern_status status = terni_id_create_at(address, own);
    if (status != TERN_OK || comm->door_fd < 0 || !is_door(comm, own)) {
        return status;
    }
    taken = *own; /* is listened at until there is another, which so has another port */
    memset(own, 0, sizeof *own);
    status = create_apart(comm, address, own);
    terni_roll_withdraw(&taken);
    return status;
}

/* ---- The loop ---- */

/* Links to and from ranks are listed with whose they are: a system takes no more entries than a process may
 * have descriptors, not even empty ones. */
static void want(struct roll_call *c, int *num, struct polled whose, const struct link *l, int is_connecting)
{
    if (l->fd >= 0) {
        c->fds[*num].fd = l->fd;
        c->fds[*num].events = (short)(is_connecting || terni_link_is_sending(l) ? POLLIN | POLLOUT : POLLIN);
        c->polled[(*num)++] = whose;
    }
}

/* The door unless the house is full, the guests, then links. Returns how many entries there are. */
static int list_polled(struct roll_call *c)
{
    int num = 1 + c->lobby.num;
    c->fds[0].fd = terni_lobby_is_full(&c->lobby) ? -1 : c->comm->door_fd;
    c->fds[0].events = POLLIN;
    for (int i = 0; i < c->lobby.num; i++) {
        c->fds[1 + i].fd = c->lobby.guests[i].link.fd;
        c->fds[1 + i].events = POLLIN;
    }
    for (int r = 0; r < num_ranks_of(c); r++) {
        struct seat *s = &c->seats[r];
        want(c, &num, (struct polled){r, 0}, &s->out, s->reach == REACH_KNOCKING);
        want(c, &num, (struct polled){r, 1}, &s->in, 0);
    }
    return num;
}

static enum tern_status read_link(struct roll_call *c, struct polled whose)
{
    struct seat *s = &c->seats[whose.rank];
    if (whose.is_in) {
        terni_link_send(&s->in);
        read_above(s);
    } else if (s->reach == REACH_KNOCKING) {
        return knocked(c, whose.rank);
    } else {
        terni_link_send(&s->out);
        read_below(c, whose.rank);
    }
    return TERN_OK;
}

static enum tern_status wait_for_news(struct roll_call *c)
{
    int num_guests = c->lobby.num, num = list_polled(c);
    TERN_TRY(terni_poll(c->fds, num, terni_poll_ms(terni_clock_ns() + tick_ns)));
    for (int i = 1 + num_guests; i < num && !c->is_over; i++) {
        if (c->fds[i].revents != 0) {
            TERN_TRY(read_link(c, c->polled[i]));
        }
    }
    /* From the last, because a guest that leaves moves those after it. */
    for (int i = num_guests - 1; i >= 0; i--) {
        if (c->fds[1 + i].revents != 0) {
            hear(c, i);
        }
    }
    if (terni_lobby_waits_too_long(&c->lobby)) {
        hear(c, 0);
        if (terni_lobby_is_full(&c->lobby)) {
            terni_lobby_drop(&c->lobby, 0, 0);
        }
    }
    if (c->fds[0].revents != 0) {
        enum tern_status status = terni_lobby_accept(&c->lobby, c->comm->door_fd, c->comm->rank);
        return c->is_over ? TERN_OK : status;
    }
    return TERN_OK;
}

/* Tells those who called, and waits a little for sockets that are full. */
static void pass_on(struct roll_call *c)
{
    uint64_t end_ns = terni_clock_ns() + quiet_ns;
    int is_sending = 1;
    for (int r = 0; r < num_ranks_of(c); r++) {
        struct link *l = &c->seats[r].in;
        if (l->fd >= 0 && !terni_link_is_sending(l)) {
            if (c->verdict == TERN_OK) {
                terni_link_put(l, FRAME_ROLL, 0, 0, c->news, c->news_bytes);
            } else {
                terni_link_put(l, FRAME_VERDICT, (uint32_t)c->verdict, 0, c->sentence, strlen(c->sentence));
            }
        }
    }
    while (is_sending && terni_clock_ns() < end_ns) {
        is_sending = 0;
        for (int r = 0; r < num_ranks_of(c); r++) {
            struct link *l = &c->seats[r].in;
            if (l->fd >= 0) {
                terni_link_send(l);
                is_sending |= terni_link_is_sending(l);
            }
        }
        if (is_sending) {
            poll(NULL, 0, 1);
        }
    }
}

static enum tern_status run(struct roll_call *c, struct roll *roll)
{
    int rank = c->comm->rank;
    const unsigned char *marks = (const unsigned char *)c->news + sizeof roll->id, *first;
    while (!c->is_over) {
        uint64_t now = terni_clock_ns();
        int leads;
        TERN_TRY(call_below(c, now, &leads));
        if (leads) {
            TERN_TRY(lead(c, now));
        } else {
            c->lead_ns = 0;
        }
        if (!c->is_over) {
            TERN_TRY(wait_for_news(c));
        }
    }
    pass_on(c);
    if (c->verdict != TERN_OK) {
        return TERN_FAIL(c->verdict, "%s", c->sentence);
    }
    if (marks[rank] == ROLL_ABSENT) {
        return TERN_FAIL(TERN_DISCONNECTED,
                         "the others went on without rank %d (this one), which they did not hear", rank);
    }
    first = (const unsigned char *)memchr(marks, ROLL_CHOSEN, (size_t)num_ranks_of(c));
    memcpy(&roll->id, c->news, sizeof roll->id);
    memcpy(roll->marks, marks, (size_t)num_ranks_of(c));
    roll->lowest = first != NULL ? (int)(first - marks) : -1;
    return TERN_OK;
}

static void roll_call_free(struct roll_call *c)
{
    for (int r = 0; c->seats != NULL && r < num_ranks_of(c); r++) {
        terni_link_close(&c->seats[r].out);
        terni_link_close(&c->seats[r].in);
    }
    terni_lobby_close(&c->lobby);
    free(c->news);
    free(c->polled);
    free(c->fds);
    free(c->seats);
    free(c);
}

static struct roll_call *roll_call_new(struct tern_comm *comm, const struct roll_terms *terms)
{
    size_t n = (size_t)comm->num_ranks;
    struct roll_call *c = (struct roll_call *)calloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    c->comm = comm;
    c->terms = terms;
    c->patience_ns = terms->timeout_ms * ms;
    c->news_bytes = sizeof(struct tern_id) + n;
    c->seats = (struct seat *)calloc(n, sizeof *c->seats);
    c->fds = (struct pollfd *)calloc(1 + TERN_MOST_GUESTS + 2 * n, sizeof *c->fds);
    c->polled = (struct polled *)calloc(1 + TERN_MOST_GUESTS + 2 * n, sizeof *c->polled);
    c->news = (char *)calloc(1, c->news_bytes);
    for (size_t r = 0; c->seats != NULL && r < n; r++) {
        terni_link_init(&c->seats[r].out, -1);
        terni_link_init(&c->seats[r].in, -1);
    }
    if (c->seats == NULL || c->fds == NULL || c->polled == NULL || c->news == NULL) {
        roll_call_free(c);
        return NULL;
    }
    memcpy(c->call.cookie, comm->cookie, sizeof c->call.cookie);
    return c;
}

enum tern_status terni_roll_call(struct tern_comm *comm, const struct roll_terms *terms, struct tern_id *own,
                                 struct roll *roll)
{
    enum tern_status status;
    struct id_fields fields;
    struct address address;
    struct roll_call *c = roll_call_new(comm, terms);
    memset(own, 0, sizeof *own);
    if (c == NULL) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no memory for a roll call of %d ranks", comm->num_ranks);
    }
    terni_address_loopback(&address); /* of a communicator of one rank */
    status = comm->door_fd < 0 ? TERN_OK : terni_id_read(&comm->cards[comm->rank].door, &fields, &address);
    if (status == TERN_OK) {
        status = create_apart(comm, &address, own);
    }
    if (status == TERN_OK) {
        c->call.id = *own;
        status = run(c, roll);
    }
    roll_call_free(c);
    return status;
}
