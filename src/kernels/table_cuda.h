/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda machine's launch table, made from the one list of kernels. */
#ifndef TERN_TABLE_CUDA_H
#define TERN_TABLE_CUDA_H

struct cuda_kernel {
    const char *name;
    const void *stub; /* what the CUDA runtime knows the kernel by; NULL: not linked into this program */
    int max_threads;
};

/* `kernel` is an enum terni_kernel below TERN_KERNEL_COUNT. */
struct cuda_kernel terni_cuda_kernel(int kernel);

/* 1: the kernels of this build take time stamps (stamp.h). */
int terni_cuda_stamps(void);

#endif
