/* SPDX-License-Identifier: Apache-2.0
 *
 * What low latency adds to layout.c: the checks of its part of a configuration, how long its rows are, what
 * its blocks have in shared memory, and where the arrays of a lane lie. */
#include "ep/layout_parts.h"

#include "kernels/kernels.h"
#include "kernels/ll_far_args.h"

/* Programs that are wrong on purpose, for test/tsan_awake.sh, have no rows in words. */
#ifdef TERN_TEST_NO_LL_WORDS
enum { HAS_WORDS = 0 };
#else
enum { HAS_WORDS = 1 };
#endif

enum {
    MAX_LL_TOKENS = 1 << 13,
    MAX_LANES = 64,
    DEFAULT_LANES = 2,
    LEAST_CHUNK = 256,
    MAX_WORD_EXPERTS = 0x7fff, /* ids have 15 bits in words (kernels/ll_ids.h), of which one is for none */
    /* Rows of a low-latency combine on their way to other domains: one for each warp that there can be, or
     * for those of one block. */
    MOST_OUT_SLOTS = EP_MAX_BLOCKS * TERN_THREADS_ll_combine_plain / 32,
    FEWEST_OUT_SLOTS = TERN_THREADS_ll_combine_plain / 32
};

enum tern_status terni_shape_init_ll(const struct tern_ep_config *config, struct ep_shape *s)
{
    if (config->ll_tokens == 0) {
        TERN_TRY(terni_check_range("ll_hidden without ll_tokens", config->ll_hidden, 0, 0));
        TERN_TRY(terni_check_range("ll_mask without ll_tokens", config->ll_mask, 0, 0));
        TERN_TRY(terni_check_range("ll_rail without ll_tokens", config->ll_rail, 0, 0));
        return terni_check_range("ll_lanes without ll_tokens", config->ll_lanes, 0, 0);
    }
    TERN_TRY(terni_check_range("ll_tokens", config->ll_tokens, 1, MAX_LL_TOKENS));
    TERN_TRY(terni_check_range("ll_hidden", config->ll_hidden, 8, MAX_ROW_BYTES / 2));
    if (config->ll_hidden % 8 != 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "ll_hidden is %u; it must be a multiple of 8",
                         config->ll_hidden);
    }
    TERN_TRY(terni_check_range("ll_lanes", config->ll_lanes, 0, MAX_LANES));
    TERN_TRY(terni_check_range("ll_mask", config->ll_mask, 0, 1));
    TERN_TRY(terni_check_range("ll_rail", config->ll_rail, 0, 1));
    if (config->ll_rail && config->ll_mask) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "ll_rail is 1 with ll_mask 1: a lost rank takes with it what it would have spread, "
                         "so that the others could not go on without it alone");
    }
    TERN_TRY(terni_check_range("max_topk with low latency", s->max_topk, 1, LL_MAX_TOPK));
    uint64_t rows = (uint64_t)s->num_experts * config->ll_tokens;
    if (rows > MAX_ROWS) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%u experts x %u ll_tokens are %llu rows; one rank can hold %llu", s->num_experts,
                         config->ll_tokens, (unsigned long long)rows, (unsigned long long)MAX_ROWS);
    }
    s->ll_tokens = config->ll_tokens;
    s->ll_hidden = config->ll_hidden;
    s->ll_lanes = config->ll_lanes ? config->ll_lanes : DEFAULT_LANES;
    s->ll_mask = config->ll_mask;
    s->ll_rail = config->ll_rail;
    return TERN_OK;
}

uint32_t terni_ll_header_bytes(uint32_t topk, uint32_t is_railed)
{
    return (uint32_t)align_up((LL_HEADER_MESSAGE(topk) + (uint64_t)is_railed) * sizeof(int32_t), 16);
}

uint32_t terni_ll_scale_bytes(uint32_t cast, uint32_t hidden)
{
    uint32_t blocks = (hidden + TERN_FP8_BLOCK - 1) / TERN_FP8_BLOCK;
    return cast == TERN_CAST_NONE ? 0 : cast == TERN_CAST_FP8_UE8M0 ? (blocks + 3) / 4 * 4 : blocks * 4;
}

uint32_t terni_ll_row_bytes(const struct ep_shape *s)
{
    uint64_t hidden = s->ll_hidden;
    uint64_t cast = align_up(hidden, 16) + align_up(terni_ll_scale_bytes(TERN_CAST_FP8, s->ll_hidden), 16);
    return terni_ll_header_bytes(s->max_topk, s->ll_rail) + (uint32_t)larger(2 * hidden, cast);
}

uint32_t terni_ll_sent_bytes(uint32_t compression, uint32_t hidden)
{
    uint32_t blocks = (hidden + TERN_FP8_BLOCK - 1) / TERN_FP8_BLOCK;
    return compression == TERN_LL_PLAIN
               ? 2 * hidden
               : (uint32_t)align_up(blocks * (compression == TERN_LL_FP8 ? 132 : 164), 16);
}

uint32_t terni_ll_place_offset(const struct ep_shape *s)
{
    uint64_t far = s->num_domains > 1 ? s->num_ranks + s->num_experts + 2ull : 0; /* where rows begin */
    far += s->ll_rail * (1ull + LL_STAGES) * s->num_domains;                      /* messages */
    return (uint32_t)((s->num_experts + (1ull + LL_STAGES) * s->num_ranks + far) * sizeof(uint32_t));
}

uint32_t terni_ll_stage_offset(const struct ep_shape *s)
{
    uint64_t order = s->num_domains > 1 ? s->num_experts + 2ull * s->num_ranks + 1 : 1;
    order += s->ll_rail * (s->num_domains + 1ull);
    uint64_t places = s->num_experts + s->num_ranks + s->experts_a_rank + 2ull + order;
    uint64_t near = s->num_domains > 1 ? LL_NEAR_BYTES : 0; /* right before the stages */
    return (uint32_t)align_up(terni_ll_place_offset(s) + places * sizeof(uint32_t) + near, 128);
}

uint32_t terni_ll_shared_bytes(const struct ep_shape *s, uint32_t row_bytes)
{
    return (uint32_t)align_up(terni_ll_stage_offset(s) + (uint64_t)LL_STAGES * row_bytes, 16);
}

uint32_t terni_ll_ids_bytes(const struct ep_shape *s, uint32_t tokens, uint32_t topk)
{
    return (s->num_ranks + 1) * tokens * LL_ID_WORDS(topk) * (uint32_t)sizeof(uint64_t);
}

uint32_t terni_ll_watch_bytes(const struct ep_shape *s)
{
    return s->num_ranks * (uint32_t)(sizeof(uint64_t) + sizeof(uint32_t));
}

static uint32_t between(uint64_t value, uint32_t low, uint32_t high)
{
    return value < low ? low : value > high ? high : (uint32_t)value;
}

struct ll_room terni_ll_chunk_room(const struct ep_shape *s, const struct ll_depth *d, uint32_t row_bytes)
{
    uint32_t watch = terni_ll_watch_bytes(s);
    uint64_t a_warp = (d->shared_bytes > watch ? d->shared_bytes - watch : 0) / d->warps;
    struct ll_room room;
    room.stage_bytes = d->chunk_bytes;
    while (room.stage_bytes > LEAST_CHUNK && a_warp < 2 * (room.stage_bytes + sizeof(uint64_t))) {
        room.stage_bytes /= 2;
    }
    uint32_t chunks = (row_bytes + room.stage_bytes - 1) / room.stage_bytes;
    room.stages = between(a_warp / (room.stage_bytes + sizeof(uint64_t)), 2, d->most_chunks);
    room.stages = chunks < room.stages ? chunks : room.stages;
    room.words_offset = d->warps * room.stages * room.stage_bytes;
    room.bytes = room.words_offset + d->warps * room.stages * (uint32_t)sizeof(uint64_t);
    return room;
}

struct ll_room terni_ll_row_room(const struct ep_shape *s, const struct ll_depth *d, uint32_t sent_bytes)
{
    uint32_t words = LL_MAKE_STAGES * (uint32_t)sizeof(uint32_t),
             beside = terni_ll_watch_bytes(s) + words + 128;
    uint64_t all = d->shared_bytes > beside ? d->shared_bytes - beside : 0;
    struct ll_room room;
    room.stage_bytes = (uint32_t)align_up(sent_bytes, 128);
    words = LL_MAKE_WORDS * (uint32_t)sizeof(uint32_t);
    room.stages = between(all / (room.stage_bytes + words), 1, d->most_rows);
    room.words_offset = room.stages * room.stage_bytes;
    room.bytes = (uint32_t)align_up(
        room.words_offset + LL_MAKE_STAGES * sizeof(uint32_t) + (uint64_t)room.stages * words, 8);
    return room;
}

/* Rows of a combine that an out-box has room for, however many there may be. */
static uint32_t most_out_slots(const struct ep_shape *s, uint64_t row_bytes)
{
    uint64_t given = s->net_ring_bytes * (s->num_domains - 1) / row_bytes;
    return s->limits_out ? between(given, FEWEST_OUT_SLOTS, MOST_OUT_SLOTS) : MOST_OUT_SLOTS;
}

uint32_t terni_ll_blank_row_bytes(const struct ep_shape *s)
{
    uint32_t topk = s->max_topk, hidden = s->ll_hidden;
    uint64_t plain = LL_BLANK_ROW_BYTES(topk, 2 * hidden, 0u);
    uint64_t cast =
        LL_BLANK_ROW_BYTES(topk, (uint32_t)align_up(hidden, 16), terni_ll_scale_bytes(TERN_CAST_FP8, hidden));
    return (uint32_t)larger(plain, cast);
}

/* Of one copy: all rows that an operation may have, or as many as there are to be. */
static uint64_t blank_bytes(const struct ep_shape *s)
{
    uint64_t rows =
        (uint64_t)s->num_ranks * s->ll_tokens * align_up(terni_ll_blank_row_bytes(s), LL_BLANK_ALIGN);
    uint64_t home = (uint64_t)s->ll_tokens * s->max_topk * align_up(2ull * s->ll_hidden, LL_BLANK_ALIGN);
    return align_up(larger(lesser(rows, LL_MOST_BLANK), lesser(home, LL_MOST_HOME)), ALIGNMENT);
}

void terni_layout_lane(const struct ep_shape *s, struct ll_layout *l)
{
    uint64_t tokens = s->ll_tokens, rows = s->num_ranks * tokens, choices = tokens * s->max_topk;
    uint64_t places = s->num_domains > 1 ? 2 * choices : choices; /* any choice may be of a far rank */
    uint64_t here = lesser(s->max_topk, s->experts_a_rank), far = s->num_ranks - s->domain_ranks, at = 0;
    _Static_assert(MAX_LL_TOKENS < 1 << 16, "an entry word has 16 bits for the tokens of an expert");
    l->entry_words = LL_ENTRY_WORDS(s->experts_a_rank) + (far > 0) + s->ll_rail;
    l->entry_bytes = align_up(s->num_ranks * l->entry_words * sizeof(uint64_t), ALIGNMENT);
    l->row_stride = terni_ll_row_bytes(s);
    /* Short rows are longer compressed: blocks are whole. */
    l->home_stride = larger(2ull * s->ll_hidden, terni_ll_sent_bytes(TERN_LL_LOG10, s->ll_hidden));
    l->tail_bytes = s->ll_rail * align_up(s->domain_ranks * sizeof(int32_t), 16);
    l->messages = rows * l->row_stride;
    l->message_words = rows;
    l->domain_bytes = s->ll_rail * tokens * (l->row_stride + l->tail_bytes);
    l->part_place = places;
    rows += s->ll_rail * s->num_domains * tokens; /* messages */
    places += s->ll_rail * s->num_ranks * tokens; /* parts of rows that others are sent */
    l->arrival_bytes = align_up(larger(rows, places) * sizeof(uint64_t), ALIGNMENT);
    l->buffer_bytes =
        align_up(larger(l->messages + s->num_domains * l->domain_bytes, places * l->home_stride), ALIGNMENT);
    l->ahead_bytes =
        far > 0 || s->ll_mask ? 0 : align_up(s->num_ranks * choices * sizeof(uint64_t), ALIGNMENT);
    if (HAS_WORDS && s->ll_tokens > 0 && far == 0 && !s->ll_mask && s->num_experts <= MAX_WORD_EXPERTS) {
        l->word_rows = lesser(lesser(tokens, LL_WORD_TOKENS), LL_WORD_CHOICES / (s->num_ranks * LL_WORD_IDS));
        l->id_bytes = 2 * sizeof(uint64_t) * LL_ID_WORDS(s->max_topk) * l->word_rows;
        l->all_id_bytes = align_up(s->num_ranks * l->id_bytes, ALIGNMENT);
        l->word_bytes =
            align_up(l->all_id_bytes + 2 * l->word_rows * s->num_ranks * l->row_stride, ALIGNMENT);
        l->blank_bytes = blank_bytes(s);
    }
    if (far > 0 && s->ll_lanes > 0) {
        uint64_t away = far * tokens * here; /* rows of a combine, at most */
        l->out_slots = between(away, 1, most_out_slots(s, l->home_stride));
        l->recycles = l->out_slots < away;
        uint64_t others = s->num_domains - 1; /* railed, a combine that is summed has a row a message */
        uint64_t out =
            tokens * lesser(s->max_topk, s->ll_rail ? others : far); /* of a dispatch: to each once */
        uint64_t home = larger(l->out_slots, s->ll_rail * others * tokens);
        l->rows_out_bytes =
            align_up(larger(out * (l->row_stride + l->tail_bytes), home * l->home_stride), ALIGNMENT);
        l->rank_chunks = (s->ll_tokens + LL_CHUNK - 1) / LL_CHUNK;
        uint64_t chunks = larger(s->num_ranks * l->rank_chunks, away / LL_CHUNK + s->num_ranks);
        l->chunk_bytes = align_up(chunks * sizeof(uint64_t), ALIGNMENT);
    }
    l->ids = take(&at, choices * sizeof(int32_t));
    l->totals = take(&at, LL_TOTALS * sizeof(int32_t));
    l->plan = take(&at, s->num_ranks * tokens * (LL_PLAN_ROWS + 2ull * s->max_topk) * sizeof(int32_t));
    l->pushes = take(&at, s->num_ranks * tokens * here * sizeof(struct ll_push));
    l->numbers = take(&at, far > 0 ? choices * sizeof(int32_t) : 0);
    l->places = take(&at, far > 0 ? s->num_experts * sizeof(uint32_t) : 0);
    l->homes = take(&at, far > 0 ? s->num_ranks * sizeof(struct ll_far_home) : 0);
    l->tails = take(&at, s->ll_rail * s->num_ranks * tokens * sizeof(int32_t));
    l->bytes = at;
    l->wait_bytes = align_up(s->num_ranks * sizeof(uint64_t), ALIGNMENT);
    l->verdict_bytes =
        s->ll_mask ? align_up(s->num_ranks * sizeof(uint64_t), ALIGNMENT) + l->arrival_bytes : 0;
}
