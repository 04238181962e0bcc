/* SPDX-License-Identifier: Apache-2.0
 *
 * Low-latency combine of few tokens, whose rows go in words (ll_in_words.h): any GPU, and the cpu machine. */
#define LL_WITH_MASKS 0
#define LL_WITH_WORDS 1
#include "kernels/kernels.h"
#include "kernels/ll_combine_body.h"

TERN_KERNEL_AS(tern_ll, combine_words, ll_combine_words, struct ll_combine_args, p)
{
    ll_combine_body(p, LL_PLAIN, 0);
}
