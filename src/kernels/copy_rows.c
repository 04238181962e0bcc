/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between a caller's tensors and staging windows, for tensors that are in no window, by loads and
 * stores. */
#include "kernels/copy_runs.h"
#include "kernels/kernels.h"

TERN_KERNEL(copy_rows, struct copy_args, p) { copy_columns_plain(p, COPY_EVERY); }
