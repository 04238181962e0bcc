/* SPDX-License-Identifier: Apache-2.0
 *
 * NICs of the mock that work: behind its libraries a software NIC, in a thread of its own, serves every queue
 * pair from when both its ends are connected until it is destroyed. Networks that open in the meantime with
 * TERN_TRANSPORT_MLX5, of ranks in this process, get them, through the provider's own code. */
#ifndef TERN_TEST_MOCK_NIC_H
#define TERN_TEST_MOCK_NIC_H

#include <stdint.h>

/* 0: this build has no rdma-core, or there is no place for files. One at a time. */
int mock_nic_open(int is_roce, uint64_t seed);
/* The call after so many more of the mock's libraries fails; 0: none. How many there were since. */
int mock_nic_fail(int at);
/* The mock refuses queue pairs whose packets would say anything else. gid_index -1: any. */
void mock_nic_expect(int gid_index, uint32_t traffic_class, uint32_t service_level);
/* Entries that queue pairs of this NIC have been asked for since they are connected. */
uint64_t mock_nic_carried(const char *name);
/* 1: nothing was left, and the mock has no complaint; else *complaint tells. */
int mock_nic_close(char complaint[256]);

#endif
