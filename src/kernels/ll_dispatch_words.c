/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency dispatch of few tokens, whose rows go in words: any GPU, and the cpu machine. */
#define LL_WITH_MASKS 0
#include "kernels/kernels.h"
#include "kernels/ll_dispatch_words.h"

TERN_KERNEL_AS(tern_ll, dispatch_words, ll_dispatch_words, struct ll_dispatch_args, p) { ll_few_body(p); }
