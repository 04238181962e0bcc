/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the cpu machine share: cpu.c (open, close, memory, and its face to the executor) and
 * cpu_share.c (memory for peers). */
#ifndef TERN_CPU_MACHINE_H
#define TERN_CPU_MACHINE_H

#include "machine/machine.h"

enum tern_status terni_cpu_share_reserve(struct machine *m, int kind, uint64_t bytes, struct share *share);
enum tern_status terni_cpu_share_add(struct machine *m, struct share *share, uint64_t bytes, int *fd);
enum tern_status terni_cpu_share_import(struct machine *m, struct share *share, int fd, uint64_t offset,
                                        uint64_t bytes);
void terni_cpu_share_trim(struct machine *m, struct share *share, uint64_t bytes);
enum tern_status terni_cpu_peer_enable(struct machine *m, int device);
int terni_cpu_lacks_atomics(struct machine *m, const unsigned char uuid[16]);
void terni_cpu_share_free(struct machine *m, struct share *share);
enum tern_status terni_cpu_share_lend(struct machine *m, void *memory, uint64_t bytes, int exported,
                                      struct share_loan *loan);

#endif
