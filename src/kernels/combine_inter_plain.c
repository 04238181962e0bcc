/* SPDX-License-Identifier: Apache-2.0
 *
 * Combine across domains by loads and stores: any GPU, and the cpu machine. */
#include "kernels/kernels.h"
#include "kernels/combine_inter_body.h"

TERN_KERNEL(combine_inter_plain, struct combine_inter_args, p)
{
    combine_inter_body(p, COMBINE_PLAIN, PULL_MAX_GROUPS);
}
