/* SPDX-License-Identifier: Apache-2.0
 *
 * The fuzz target of the decoder without libFuzzer: every kept input again, and every kept input with random
 * bytes changed, under whatever sanitizer the build has. Together the kept inputs must reach all that the
 * decoder can say: an entry of each opcode taken, each of its refusals. */
#include "fuzz/decode_fuzz.c"
#include "support.h"

#include <dirent.h>

enum { NUM_INPUTS = 512, INPUT_BYTES = DECODE_FUZZ_HEAD + 2048 };

static struct {
    size_t bytes;
    uint8_t data[INPUT_BYTES];
} inputs[NUM_INPUTS];
static int num_inputs;

static int read_inputs(void)
{
    static const char folder[] = "test/fuzz/decode";
    DIR *dir = opendir(folder);
    struct dirent *entry;
    CHECK(dir != NULL, "there is no %s", folder);
    while ((entry = readdir(dir)) != NULL && num_inputs < NUM_INPUTS) {
        char path[512];
        FILE *file;
        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        file = fopen(path, "rb");
        if (file != NULL) {
            inputs[num_inputs].bytes = fread(inputs[num_inputs].data, 1, INPUT_BYTES, file);
            fclose(file);
            num_inputs++;
        }
    }
    closedir(dir);
    return TEST_PASSED;
}

/* In an allocation of its size, as libFuzzer hands it over. */
static void replay(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = (uint8_t *)test_take(bytes, 1);
    memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static int replays_kept_inputs(struct test *t)
{
    static const uint32_t opcodes[] = {WQE_NOP,       WQE_RDMA_WRITE, WQE_RDMA_WRITE_IMM,
                                       WQE_RDMA_READ, WQE_ATOMIC_CS,  WQE_ATOMIC_FA,
                                       WQE_MASKED_CS, WQE_MASKED_FA,  WQE_DUMP};
    uint64_t taken = 0, refused = 0;
    PASS(read_inputs());
    for (int i = 0; i < num_inputs; i++) {
        if (inputs[i].bytes < DECODE_FUZZ_HEAD) {
            continue;
        }
        replay(inputs[i].data, inputs[i].bytes);
        if (decode_fuzz_last.reason == REFUSED_NOTHING) {
            taken |= 1ull << decode_fuzz_last.opcode;
        } else {
            refused |= 1ull << decode_fuzz_last.reason;
        }
    }
    for (size_t i = 0; i < sizeof(opcodes) / sizeof(opcodes[0]); i++) {
        CHECK(taken >> opcodes[i] & 1, "no kept input is an operation of opcode 0x%02x", opcodes[i]);
    }
    /* Those behind it are the key table's. */
    for (uint32_t reason = REFUSED_NOTHING + 1; reason < REFUSED_LKEY; reason++) {
        CHECK(refused >> reason & 1, "no kept input is refused with reason %u", reason);
    }
    test_detail(t, "%d inputs", num_inputs);
    return TEST_PASSED;
}

static int survives_changes(struct test *t)
{
    int rounds = test_scaled(t, 200000), taken = 0;
    struct rng r = {0xf022};
    CHECK(num_inputs > 0, "there is no input to change");
    for (int i = 0; i < rounds; i++) {
        uint8_t data[INPUT_BYTES];
        const int which = (int)rng_below(&r, (uint32_t)num_inputs);
        size_t bytes = inputs[which].bytes;
        memcpy(data, inputs[which].data, bytes);
        for (uint32_t changes = rng_between(&r, 1, 3); changes > 0 && bytes > 0; changes--) {
            data[rng_below(&r, (uint32_t)bytes)] ^=
                (uint8_t)(rng_below(&r, 2) ? 1u << rng_below(&r, 8) : rng_next(&r));
        }
        bytes = rng_one_in(&r, 8) ? rng_below(&r, (uint32_t)bytes + 1) : bytes;
        replay(data, bytes);
        taken += decode_fuzz_last.reason == REFUSED_NOTHING;
    }
    CHECK(taken > 0 && taken < rounds, "%d of %d changed inputs are operations", taken, rounds);
    test_detail(t, "%d inputs, %d still operations", rounds, taken);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_run(&t, "kept inputs of the fuzzer reach everything", replays_kept_inputs);
    test_run(&t, "and survive random changes", survives_changes);
    return test_end(&t);
}
