/* SPDX-License-Identifier: Apache-2.0
 *
 * The file in which one rank leaves the stamps of one EP object for tern-trace: this header, then
 * num_events events, oldest first, all as this machine has them in memory. docs/trace.md describes it. */
#ifndef TERN_TRACE_FILE_H
#define TERN_TRACE_FILE_H

#include "kernels/stamp_ring.h"

#define TRACE_MAGIC "TERNTRC" /* eight bytes with the zero */

enum { TRACE_VERSION = 1 };
/* When the file was written. */
enum { TRACE_OPENED = 0, TRACE_AT_FAULT = 1, TRACE_AT_CLOSE = 2, TRACE_AT_RESET = 3 };
enum { TRACE_CLOCK_HOST = 0, TRACE_CLOCK_GPU = 1 }; /* CLOCK_MONOTONIC; globaltimer */

struct trace_header {
    char magic[8];
    uint32_t version, header_bytes, event_bytes;
    int32_t rank, num_ranks;
    uint32_t object;          /* on its communicator; equal on all ranks; another one after a reset */
    unsigned char cookie[16]; /* of the communicator, which no other has */
    uint64_t host;            /* equal for ranks of one host */
    unsigned char device[16]; /* the GPU's uuid */
    int64_t pid;
    uint64_t num_events;
    uint64_t num_dropped; /* older ones, which the ring had no room for */
    uint64_t capacity;
    uint32_t clock, written;
    char host_name[64];
    char device_name[64];
};

#endif
