/* SPDX-License-Identifier: Apache-2.0
 *
 * The option table, its parser and its help text. */
#include "options.h"
#include "kernels/ll_args.h"
#include "net/softnic_provider.h"

#include <stdio.h>
#include <string.h>

/* A flag takes no value, every other option one. */
enum kind { NUMBER, SWEEP, CHOICE, TEXT, FLAG };

struct row {
    const char *name;
    enum kind kind;
    unsigned commands; /* enum command, or-ed */
    size_t offset;     /* of the field of struct options */
    uint32_t min, max; /* of a number */
    uint32_t value;    /* default of a number or a choice */
    const char *words; /* of a choice, in order of value, with bars between; of others, what to give */
    const char *help;
};

#define AT(field) offsetof(struct options, field)
/* Rows of BF16 to 1 MiB, the longest that an EP object takes. */
enum { MAX_HIDDEN = 1 << 19 };
enum { EP = COMMAND_EP, WIRE = COMMAND_WIRE, DEMO = COMMAND_DEMO, LL = COMMAND_LL, ALL = COMMAND_ALL };
enum { NIC = COMMAND_NIC };
enum { MOVES = COMMAND_PUT | COMMAND_GET, SIZES = MOVES | COMMAND_PINGPONG, NET = COMMAND_NET };

/* In order of enum transport. */
#define CARRIERS "p2p|softnic|mock-mlx5|proxy-tcp|proxy-libfabric"

static const struct row rows[] = {
    {"--machine", CHOICE, ALL, AT(machine), 0, 0, 0, "auto|cpu|cuda",
     "auto: TERN_MACHINE, else cuda if a GPU is there"},
    {"--ranks", NUMBER, ALL, AT(ranks), 1, TERN_MAX_RANKS, 0, "N", "default 8; under tern-run what it says"},
    {"--tokens", SWEEP, EP, AT(tokens), 0, 1u << 20, 0, "N[,N..]", "tokens a rank; default 4096, cpu 64"},
    {"--tokens", SWEEP, LL, AT(tokens), 0, 1u << 13, 0, "N[,N..]",
     "tokens a rank; default 1,8,32,128,512,1024, cpu 16"},
    {"--hidden", NUMBER, EP | LL, AT(hidden), 8, MAX_HIDDEN, 0, "N",
     "channels a token; default 7168, cpu 512"},
    {"--topk", NUMBER, EP, AT(topk), 1, TERN_MAX_TOPK, 0, "N", "experts a token; default 8, or the file's"},
    {"--topk", NUMBER, LL, AT(topk), 1, LL_MAX_TOPK, 0, "N", "experts a token; default 8, or the file's"},
    {"--experts", NUMBER, EP, AT(experts), 1, MAX_EXPERTS, 0, "N",
     "of all ranks; default 256, of a file one more than its largest id"},
    {"--experts", NUMBER, LL, AT(experts), 1, MAX_EXPERTS, 0, "N",
     "of all ranks; default 288, of a file one more than its largest id"},
    {"--sms", NUMBER, EP | DEMO, AT(sms), 1, 1024, 0, "N",
     "processors an operation takes; default 24, or what a rank may use"},
    {"--sms", NUMBER, LL, AT(sms), 1, 1024, 0, "N",
     "processors an operation takes; default what a rank may use"},
    {"--dtype", CHOICE, EP, AT(dtype), 0, 0, DTYPE_BF16, "bf16|fp8|cast",
     "rows of dispatch: bf16, fp8 with FP32 scales, bf16 cast to fp8 on the way"},
    {"--layout", CHOICE, EP, AT(layout), 0, 0, TERN_LAYOUT_RANK, "rank|expert", "order of the rows received"},
    {"--align", NUMBER, EP, AT(align), 1, 4096, 1, "N",
     "expert layout: rows that an expert's begin is a multiple of"},
    {"--cast", CHOICE, LL, AT(ll.cast), 0, 0, TERN_CAST_FP8, "none|fp8|pow2|ue8m0",
     "rows of dispatch: BF16, or cast to E4M3 with one of three kinds of scales"},
    {"--weights", CHOICE, LL, AT(ll.weights), 0, 0, NOT_CHOSEN, "combine|dispatch|ahead",
     "where weights are given: a row a choice comes home, or a sum a rank; ahead: at combine, and sent to "
     "experts' ranks first, who add (not with --mask, --domain-size, by rank); default combine, by rank "
     "dispatch"},
    {"--layout", CHOICE, LL, AT(ll.layout), 0, 0, TERN_LL_BY_EXPERT, "expert|rank",
     "rows received: one a (token, expert), or one a (token, rank)"},
    {"--compression", CHOICE, LL, AT(ll.compression), 0, 0, TERN_LL_PLAIN, "none|fp8|log10",
     "rows of combine on their way: BF16, E4M3 with FP32 scales, or 10-bit logarithms"},
    {"--hook", FLAG, LL, AT(ll.hook), 0, 0, 0, "", "send and receive as two calls, timed apart too"},
    {"--lanes", NUMBER, LL, AT(ll.lanes), 1, 64, 1, "N",
     "batches that go together; figures are of one; with --hook all send, then receive"},
    {"--mask", NUMBER, LL, AT(ll.mask), 0, TERN_MAX_RANKS - 1, NO_MASK, "RANK",
     "masked on all others, it takes no part; default none"},
    {"--statistics", FLAG, LL, AT(ll.statistics), 0, 0, 0, "",
     "counts added up and time waited, asked of every operation"},
    {"--rail", FLAG, LL, AT(ll.rail), 0, 0, 0, "",
     "with --domain-size: one copy a (token, domain) crosses the network, and with --weights dispatch one "
     "sum comes back (ll_rail); not with --mask"},
    {"--graph", FLAG, LL, AT(ll.graph), 0, 0, 0, "", "replay operations from captured graphs"},
    {"--routing", TEXT, EP | LL, AT(routing), 0, 0, 0, "uniform|FILE.npy",
     "drawn without replacement, or an array [layer, token, choice]; default uniform"},
    {"--weights", TEXT, EP, AT(weights), 0, 0, 0, "FILE.npy",
     "top-k weights for a routing file; default: drawn"},
    {"--layer", NUMBER, EP | LL, AT(layer), 0, 1u << 16, 0, "N", "of the routing file; default 0"},
    {"--skew", NUMBER, EP | LL, AT(skew), 100, 100 * TERN_MAX_RANKS, 100, "N",
     "drawn so that rank 0 has N per cent of the mean of rows of rank layout: a (token, rank) once"},
    {"--bytes", SWEEP, SIZES, AT(net.bytes), 1, 1u << 22, 0, "N[,N..]",
     "of one operation; default 8 to 4194304, doubling; cpu 8 to 8192"},
    {"--bytes", SWEEP, NIC, AT(net.bytes), 8, 1u << 26, 0, "N[,N..]",
     "of a large put; default 4096 to 1048576, times 4; cpu 512 to 8192"},
    {"--nic-gbps", NUMBER, NIC, AT(nic.gbps), 1, 10000, 0, "N", "modelled rate, Gb/s; default 400, cpu 1"},
    {"--nic-latency-us", NUMBER, NIC, AT(nic.latency_us), 0, 100000, 2, "N", "modelled latency, one way"},
    {"--nic-mops", NUMBER, NIC, AT(nic.mops), 1, 1000, 0, "N",
     "modelled rate of messages, million a second; default: none is modelled"},
    {"--nic-sms", NUMBER, NIC, AT(nic.sms), 1, 64, 8, "N", "processors for each NIC that is a kernel"},
    {"--queues", NUMBER, NIC, AT(net.queues), 1, SOFTNIC_MAX_QUEUES, 8, "N", "to each peer"},
    {"--domain-size", NUMBER, EP | LL, AT(net.domain_size), 1, TERN_MAX_RANKS, 0, "N",
     "ranks of a domain, consecutive ones; other domains are reached by the transport. Default: as found"},
    {"--transport", CHOICE, EP | LL, AT(net.transport), 0, 0, NOT_CHOSEN, CARRIERS,
     "what carries rows to other domains, as of tern-bench put; default: what a program gets that does not "
     "ask"},
    {"--transport", CHOICE, NET, AT(net.transport), 0, 0, 0, CARRIERS,
     "what carries operations: loads and stores; queue pairs of a NIC in software, by its own provider or by "
     "that of mlx5 over a mock of "
     "its libraries; the proxy (TERN_PROXY=fabric:.. names another provider than tcp;ofi_rxm)"},
    {"--nic-gbps", NUMBER, EP | LL | NET, AT(nic.gbps), 1, 10000, 0, "N",
     "softnic: modelled rate, Gb/s; default: none is modelled"},
    {"--nic-latency-us", NUMBER, EP | LL | NET, AT(nic.latency_us), 0, 100000, 0, "N",
     "softnic: modelled latency, one way"},
    {"--nic-mops", NUMBER, EP | LL | NET, AT(nic.mops), 1, 1000, 0, "N",
     "softnic: modelled rate of messages, million a second; default: none is modelled"},
    {"--nic-sms", NUMBER, EP | LL | NET, AT(nic.sms), 1, 64, 0, "N",
     "softnic: processors for each NIC that is a kernel; default 8, fewer where ranks share a GPU"},
    {"--nic-faults", TEXT, EP | LL, AT(nic.faults), 0, 0, 0, "SPEC",
     "softnic on the cpu machine: NICs speak packets over a network that errs. SPEC: packets or "
     "adaptive[:SEED], "
     "all that TERN_SOFTNIC of that name does, or faults one by one, or both with commas between: drop=P, "
     "double=P, delay=US (one in 20, by up to that), reorder=P, seed=N. Says what became of packets"},
    {"--scope", CHOICE, SIZES | COMMAND_BARRIER, AT(net.scope), 0, 0, 1, "thread|warp|block",
     "who calls together"},
    {"--transfer", CHOICE, MOVES, AT(net.bulk), 0, 0, 0, "plain|bulk",
     "loads and stores, or bulk copies through shared memory"},
    {"--sms", NUMBER, MOVES, AT(sms), 1, 1024, 0, "N",
     "blocks, one a processor; default what a rank may use"},
    {"--warps", NUMBER, SIZES | COMMAND_BARRIER, AT(net.warps), 1, 16, 0, "N",
     "of a block; default 1, scope block 16 (cpu 2), bulk 4 (cpu 2)"},
    {"--queues", NUMBER, MOVES, AT(net.queues), 1, TERN_NET_MAX_QUEUES, 1, "N",
     "to each peer; operations go round them. Loads and stores know none"},
    {"--row-ms", NUMBER, NET, AT(net.row_ms), 1, 1u << 20, 2000, "N",
     "most that all samples of a row take: a slow transport gets fewer operations in each"},
    {"--queues", NUMBER, EP, AT(net.queues), 1, TERN_NET_MAX_QUEUES, 0, "N",
     "to a rank of each other domain; default 8, or fewer with more than 5 domains"},
    {"--queues", NUMBER, LL, AT(net.queues), 1, TERN_NET_MAX_QUEUES, 0, "N",
     "to each rank of other domains; default 8, or fewer with more than 5 of these"},
    {"--iters", NUMBER, NET | NIC, AT(iters), 1, WIRE_MAX_SAMPLES, 0, "N", "samples; default 20, cpu 3"},
    {"--warmup", NUMBER, NET | NIC, AT(warmup), 1, 1000, 0, "N", "samples before; default 3, cpu 1"},
    {"--seed", NUMBER, ALL, AT(seed), 0, UINT32_MAX, 1, "N", "of routing and rows"},
    {"--iters", NUMBER, EP | LL, AT(iters), 1, 100000, 0, "N", "timed iterations; default 50, cpu 5"},
    {"--iters", NUMBER, DEMO, AT(iters), 1, 100000, 0, "N", "timed iterations; default 20, cpu 2"},
    {"--iters", NUMBER, WIRE, AT(iters), 1, WIRE_MAX_SAMPLES, 0, "N", "samples a test; default 10, cpu 3"},
    {"--warmup", NUMBER, EP | LL, AT(warmup), 1, 1000, 0, "N", "iterations before; default 5, cpu 1"},
    {"--out", CHOICE, EP, AT(tensor), 0, 0, 0, "window|tensor",
     "where outputs lie: where peers write, or one more copy away"},
    {"--meta", CHOICE, EP, AT(meta), 0, 0, 1, "0|1", "dispatch also carries top-k ids, weights and sources"},
    {"--meta", CHOICE, LL, AT(meta), 0, 0, 1, "0|1", "dispatch also gives ranges and sources"},
    {"--transfer", CHOICE, EP | LL, AT(transfer), 0, 0, 0, "auto|bulk|plain",
     "bulk copies, or loads and stores"},
    {"--combine", CHOICE, EP, AT(combine), 0, 0, 0, "auto|pull|engine|push",
     "who brings combine's rows: pull: the tokens' rank; engine: the copy engine; push: the rank that has "
     "them; auto: pull or push, as the library does"},
    {"--drain", CHOICE, EP, AT(drain), 0, 0, 0, "0|1",
     "dispatch brings rows to outputs that are tensors while others arrive; else they are copied behind the "
     "last"},
    {"--check", CHOICE, EP | LL | WIRE | NET | NIC, AT(check), 0, 0, 1, "0|1",
     "compare every element with the reference"},
    {"--corrupt", CHOICE, EP | LL | DEMO, AT(corrupt), 0, 0, 0, "none|dispatch|combine|wire",
     "flip one bit of that output, or of what the wire moves, to see that the check sees it"},
    {"--corrupt", CHOICE, WIRE | NET | NIC, AT(corrupt), 0, 0, 0, "none|flip",
     "flip one bit of rank 0's before every check, to see that it sees it"},
    {"--json", TEXT, ALL, AT(json), 0, 0, 0, "FILE", "write the same as JSON"},
    {"--data", TEXT, DEMO, AT(data), 0, 0, 0, "DIR",
     "folder of the routing files; default data, else the installed one"},
};

enum { NUM_ROWS = sizeof(rows) / sizeof(rows[0]), WORDS_AT_ONCE = 8 };

/* Digits only: no sign, no space. `given` is the whole word, of which text is a part. */
static enum tern_status read_number(const struct row *row, const char *given, const char *text, size_t length,
                                    uint32_t *value)
{
    uint64_t v = 0;
    size_t i;
    for (i = 0; i < length && text[i] >= '0' && text[i] <= '9' && v <= UINT32_MAX; i++) {
        v = v * 10 + (uint64_t)(text[i] - '0');
    }
    if (i != length || length == 0) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s %s: '%.*s' is not a whole number of %u to %u", row->name,
                         given, (int)length, text, row->min, row->max);
    }
    if (v < row->min || v > row->max) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s %s: %.*s is outside %u to %u", row->name, given,
                         (int)length, text, row->min, row->max);
    }
    *value = (uint32_t)v;
    return TERN_OK;
}

static enum tern_status read_sweep(const struct row *row, const char *given, struct sweep *sweep)
{
    const char *text = given;
    sweep->num = 0;
    for (;;) {
        size_t length = strcspn(text, ",");
        if (sweep->num == MAX_SWEEP) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s: more than %d values", row->name, MAX_SWEEP);
        }
        TERN_TRY(read_number(row, given, text, length, &sweep->values[sweep->num]));
        sweep->num++;
        if (text[length] == 0) {
            return TERN_OK;
        }
        text += length + 1;
    }
}

/* The v-th word of "a|b|c" and its length; NULL past the last. */
static const char *word_at(const char *words, uint32_t v, size_t *length)
{
    while (v > 0 && words != NULL) {
        words = strchr(words, '|');
        words = words != NULL ? words + 1 : NULL;
        v--;
    }
    *length = words != NULL ? strcspn(words, "|") : 0;
    return words;
}

static enum tern_status read_choice(const struct row *row, const char *text, uint32_t *value)
{
    const char *word;
    size_t length;
    uint32_t v;
    for (v = 0; (word = word_at(row->words, v, &length)) != NULL; v++) {
        if (strlen(text) == length && memcmp(text, word, length) == 0) {
            *value = v;
            return TERN_OK;
        }
    }
    return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s %s: not one of %s", row->name, text, row->words);
}

static enum tern_status read_value(const struct row *row, const char *text, struct options *options)
{
    void *field = (char *)options + row->offset;
    switch (row->kind) {
    case NUMBER:
        return read_number(row, text, text, strlen(text), (uint32_t *)field);
    case SWEEP:
        return read_sweep(row, text, (struct sweep *)field);
    case CHOICE:
        return read_choice(row, text, (uint32_t *)field);
    case TEXT:
        *(const char **)field = text;
        break;
    case FLAG:
        *(uint32_t *)field = 1;
        break;
    }
    return TERN_OK;
}

/* The option as any of these subcommands takes it. */
static const struct row *find(const char *name, unsigned commands)
{
    int i;
    for (i = 0; i < (int)NUM_ROWS; i++) {
        if ((rows[i].commands & commands) != 0 && strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

int options_num_words(enum command command, const char *word)
{
    const struct row *row = find(word, command);
    return row != NULL && row->kind == FLAG ? 1 : 2;
}

/* Of options of other subcommands, too, whose parts a subcommand may use; its own count. */
static void set_defaults(enum command command, struct options *o)
{
    memset(o, 0, sizeof(*o));
    o->command = command;
    for (int i = 0; i < 2 * (int)NUM_ROWS; i++) {
        const struct row *row = &rows[i % (int)NUM_ROWS];
        int counts = i < (int)NUM_ROWS || (row->commands & command) != 0;
        if (counts && (row->kind == NUMBER || row->kind == CHOICE)) {
            *(uint32_t *)(void *)((char *)o + row->offset) = row->value;
        }
    }
}

enum tern_status options_parse(enum command command, int num_words, char **words, struct options *options)
{
    struct options o;
    int i;
    set_defaults(command, &o);
    for (i = 0; i < num_words; i += options_num_words(command, words[i])) {
        const struct row *row = find(words[i], command);
        if (row == NULL && words[i][0] != '-') {
            return TERN_FAIL(TERN_INVALID_ARGUMENT,
                             "'%s' is no option; flags take no value, other options one; --help lists them",
                             words[i]);
        }
        if (row == NULL) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "no option %s here; --help lists those that there are",
                             words[i]);
        }
        if (row->kind != FLAG && i + 1 == num_words) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s needs a value: %s", row->name, row->words);
        }
        TERN_TRY(read_value(row, row->kind != FLAG ? words[i + 1] : "", &o));
    }
    if (o.routing != NULL && strcmp(o.routing, "uniform") == 0) {
        o.routing = NULL;
    }
    if (o.corrupt != CORRUPT_NONE && find("--check", command) != NULL && !o.check) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "--corrupt %s with --check 0",
                         options_word(command, "--corrupt", o.corrupt));
    }
    *options = o;
    return TERN_OK;
}

/* One option, with the default that the table knows; where it depends on more, the help says it. */
static void print_row(const struct row *row)
{
    size_t length = 0;
    const char *word = row->kind == CHOICE ? word_at(row->words, row->value, &length) : NULL;
    printf("  %-13s %-23s %s", row->name, row->words, row->help);
    if (word != NULL) {
        printf("; default %.*s", (int)length, word);
    } else if (row->kind == NUMBER && row->value >= row->min && row->value <= row->max && row->value != 0) {
        printf("; default %u", row->value);
    }
    printf("\n");
}

void options_help(enum command command)
{
    static const struct {
        enum command command;
        const char *usage;
    } parts[] = {
        {COMMAND_EP, "tern-bench ep [OPTION VALUE]...    time and check route, dispatch and combine"},
        {COMMAND_LL, "tern-bench ll [OPTION VALUE]...    time and check low-latency dispatch and combine"},
        {COMMAND_WIRE, "tern-bench wire [OPTION VALUE]...  what this machine's memory and links can do"},
        {COMMAND_PUT, "tern-bench put [OPTION VALUE]...   puts of kernels: bandwidth, beside the wire's"},
        {COMMAND_GET, "tern-bench get [OPTION VALUE]...   gets of kernels, likewise"},
        {COMMAND_ATOMIC, "tern-bench atomic [OPTION VALUE]...    latency of atomics, beside a bare flag's"},
        {COMMAND_SIGNAL, "tern-bench signal [OPTION VALUE]...    latency of signals, likewise"},
        {COMMAND_PINGPONG,
         "tern-bench pingpong [OPTION VALUE]...  latency of inline puts and of puts with signal"},
        {COMMAND_BARRIER, "tern-bench barrier [OPTION VALUE]...   a device barrier of all ranks"},
        {COMMAND_NIC,
         "tern-bench nic [OPTION VALUE]...   the software NIC, and how near it comes to a model"},
        {COMMAND_DEMO, "tern-bench demo [OPTION VALUE]...  real routing through eight ranks, checked"},
    };
    int p, i;
    for (p = 0; p < (int)(sizeof(parts) / sizeof(parts[0])); p++) {
        if ((parts[p].command & command) == 0) {
            continue;
        }
        printf("%s\n", parts[p].usage);
        for (i = 0; i < (int)NUM_ROWS; i++) {
            if ((rows[i].commands & parts[p].command) != 0) {
                print_row(&rows[i]);
            }
        }
        printf("\n");
    }
    printf("tern-bench [SUBCOMMAND] --help   this text\n"
           "tern-bench --version             the version\n\n"
           "One process drives all ranks; under `tern-run -n N tern-bench ...` each process is one rank.\n"
           "The exit status is 1 if an element is wrong and 2 if something failed.\n");
}

const char *options_word(enum command command, const char *option, uint32_t value)
{
    static _Thread_local char texts[WORDS_AT_ONCE][24];
    static _Thread_local unsigned calls;
    char *text = texts[calls++ % WORDS_AT_ONCE];
    size_t length;
    const char *word = word_at(find(option, command)->words, value, &length);
    snprintf(text, sizeof(texts[0]), "%.*s", (int)length, word != NULL ? word : "");
    return text;
}
