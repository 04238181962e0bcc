/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu machine's launch table, made from the one list of kernels. */
#ifndef TERN_TABLE_CPU_H
#define TERN_TABLE_CPU_H

struct cpu_kernel {
    const char *name;
    void (*function)(const void *args); /* NULL: not linked into this program */
    int max_threads;
};

/* `kernel` is an enum terni_kernel below TERN_KERNEL_COUNT. */
const struct cpu_kernel *terni_cpu_kernel(int kernel);

/* 1: the kernels of this build take time stamps (stamp.h). */
int terni_cpu_stamps(void);

#endif
