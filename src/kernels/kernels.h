/* SPDX-License-Identifier: Apache-2.0
 *
 * The one list of kernels: X(name, argument struct, most threads a block). Both machines make their launch
 * tables from it (machine/cpu.c, machine/cuda.c); file NAME.c in this folder, or in bench/ for wire_* and
 * drive_*, holds TERN_KERNEL(NAME, ...), or TERN_KERNEL_AS. To add a kernel: a line here, its file, its
 * arguments in a header. */
#ifndef TERN_KERNELS_H
#define TERN_KERNELS_H

#define TERN_C_KERNEL_LIST(X)                                                                                \
    X(route, struct route_args, 512)                                                                         \
    X(route_inter, struct route_inter_args, 512)                                                             \
    X(dispatch_bulk, struct dispatch_args, 576)                                                              \
    X(dispatch_drain_bulk, struct dispatch_drain_args, 384)                                                  \
    X(dispatch_plain, struct dispatch_args, 544)                                                             \
    X(combine_bulk, struct combine_args, 544)                                                                \
    X(combine_engine_bulk, struct combine_args, 544)                                                         \
    X(combine_push_bulk, struct combine_push_args, 512)                                                      \
    X(combine_plain, struct combine_args, 544)                                                               \
    X(dispatch_inter_bulk, struct dispatch_inter_args, 256)                                                  \
    X(dispatch_inter_plain, struct dispatch_inter_args, 256)                                                 \
    X(combine_inter_bulk, struct combine_inter_args, 512)                                                    \
    X(combine_inter_wide_bulk, struct combine_inter_args, 256)                                               \
    X(combine_inter_plain, struct combine_inter_args, 256)                                                   \
    X(ll_mask, struct ll_mask_args, 128)                                                                     \
    X(copy_rows_bulk, struct copy_args, 128)                                                                 \
    X(copy_rows, struct copy_args, 512)                                                                      \
    X(enter, struct enter_args, 256)                                                                         \
    X(net_ops, struct net_args, 512)                                                                         \
    X(wake, struct wake_args, 32)                                                                            \
    X(softnic, struct softnic_crew, 256)                                                                     \
    X(softnic_rc, struct softnic_rc_args, 128)                                                               \
    X(wire_store, struct wire_args, 1024)                                                                    \
    X(wire_load, struct wire_args, 1024)                                                                     \
    X(wire_push, struct wire_args, 512)                                                                      \
    X(wire_pull, struct wire_args, 512)                                                                      \
    X(wire_ping, struct wire_args, 32)                                                                       \
    X(drive_move, struct drive_args, 512)                                                                    \
    X(drive_bulk, struct drive_args, 512)                                                                    \
    X(drive_ping, struct drive_args, 512)                                                                    \
    X(drive_fetch, struct drive_args, 32)                                                                    \
    X(drive_barrier, struct drive_args, 512)                                                                 \
    X(drive_nic, struct drive_nic_args, 512)

/* Those that profilers show by a C++ name (TERN_KERNEL_AS). */
#define TERN_LL_KERNEL_LIST(X)                                                                               \
    X(ll_dispatch_bulk, struct ll_dispatch_args, 512)                                                        \
    X(ll_dispatch_mask_bulk, struct ll_dispatch_args, 512)                                                   \
    X(ll_dispatch_plain, struct ll_dispatch_args, 512)                                                       \
    X(ll_dispatch_words, struct ll_dispatch_args, 512)                                                       \
    X(ll_dispatch_blanks_bulk, struct ll_dispatch_args, 512)                                                 \
    X(ll_dispatch_blanks_plain, struct ll_dispatch_args, 512)                                                \
    X(ll_dispatch_inter_bulk, struct ll_dispatch_inter_args, 384)                                            \
    X(ll_dispatch_inter_plain, struct ll_dispatch_inter_args, 384)                                           \
    X(ll_dispatch_rail_bulk, struct ll_dispatch_inter_args, 384)                                             \
    X(ll_dispatch_rail_plain, struct ll_dispatch_inter_args, 384)                                            \
    X(ll_combine_bulk, struct ll_combine_args, 512)                                                          \
    X(ll_combine_mask_bulk, struct ll_combine_args, 512)                                                     \
    X(ll_combine_plain, struct ll_combine_args, 512)                                                         \
    X(ll_combine_blanks, struct ll_combine_args, 512)                                                        \
    X(ll_weights_ahead, struct ll_ahead_args, 512)                                                           \
    X(ll_combine_fp8_bulk, struct ll_combine_args, 512)                                                      \
    X(ll_combine_fp8_mask_bulk, struct ll_combine_args, 512)                                                 \
    X(ll_combine_fp8_plain, struct ll_combine_args, 512)                                                     \
    X(ll_combine_log10_bulk, struct ll_combine_args, 512)                                                    \
    X(ll_combine_log10_mask_bulk, struct ll_combine_args, 512)                                               \
    X(ll_combine_log10_plain, struct ll_combine_args, 512)                                                   \
    X(ll_combine_inter_bulk, struct ll_combine_inter_args, 384)                                              \
    X(ll_combine_inter_plain, struct ll_combine_inter_args, 384)                                             \
    X(ll_combine_fp8_inter_bulk, struct ll_combine_inter_args, 384)                                          \
    X(ll_combine_fp8_inter_plain, struct ll_combine_inter_args, 384)                                         \
    X(ll_combine_log10_inter_bulk, struct ll_combine_inter_args, 384)                                        \
    X(ll_combine_log10_inter_plain, struct ll_combine_inter_args, 384)                                       \
    X(ll_combine_rail_bulk, struct ll_combine_inter_args, 384)                                               \
    X(ll_combine_rail_plain, struct ll_combine_inter_args, 384)                                              \
    X(ll_combine_fp8_rail_bulk, struct ll_combine_inter_args, 384)                                           \
    X(ll_combine_fp8_rail_plain, struct ll_combine_inter_args, 384)                                          \
    X(ll_combine_log10_rail_bulk, struct ll_combine_inter_args, 384)                                         \
    X(ll_combine_log10_rail_plain, struct ll_combine_inter_args, 384)

#define TERN_KERNEL_LIST(X) TERN_C_KERNEL_LIST(X) TERN_LL_KERNEL_LIST(X)

enum terni_kernel {
#define TERN_KERNEL_ENUM(name, type, threads) TERN_KERNEL_##name,
    TERN_KERNEL_LIST(TERN_KERNEL_ENUM)
#undef TERN_KERNEL_ENUM
        TERN_KERNEL_COUNT
};

/* Launch bounds, for TERN_KERNEL and TERN_KERNEL_AS. */
enum {
#define TERN_KERNEL_THREADS(name, type, threads) TERN_THREADS_##name = threads,
    TERN_KERNEL_LIST(TERN_KERNEL_THREADS)
#undef TERN_KERNEL_THREADS
};

/* Of the one kernel that machines launch themselves; C has no empty structure. */
struct wake_args {
    int nothing;
};

#endif
