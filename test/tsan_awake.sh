#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ThreadSanitizer is awake: programs that are wrong in one place are reported there, and the same cases of the
# right programs are not. Without this a build in which it sees nothing would pass every test.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/tsan}
export TERN_TEST_SCALE=5
# One report is enough; a weakened release is reported from hundreds of threads. Reports name files, if need be
# without llvm-symbolizer.
export TSAN_OPTIONS="halt_on_error=1 exitcode=66 allow_addr2line=1"

# reports NAME WHERE PROGRAM...: a race is reported, and WHERE is in the report.
reports()
{
    name=$1 where=$2
    shift 2
    timeout 120 "$@" > "$scratch/log" 2>&1
    if grep -q 'WARNING: ThreadSanitizer: data race' "$scratch/log" && grep -q "$where" "$scratch/log"; then
        ok "$name is reported: $(grep -m 1 '^SUMMARY' "$scratch/log" | sed 's/SUMMARY: ThreadSanitizer: //')"
    else
        sed 's/^/# /' "$scratch/log" | head -n 40
        not_ok "$name is not reported"
    fi
}

# silent NAME PROGRAM...
silent()
{
    name=$1
    shift
    if timeout 300 "$@" > "$scratch/log" 2>&1; then
        ok "$name is silent"
    else
        sed 's/^/# /' "$scratch/log" | head -n 40
        not_ok "$name is not silent"
    fi
}

reports "relaxed release stores in the kernels of route, dispatch and combine" src/kernels/ \
    "$build/awake/ep_relaxed" --case 1
# One release alone, every other in place. What is reported first of ready: rows that a copy has put into staging,
# and a peer that pulls them from there.
reports "a relaxed store of ready alone" src/kernels/combine_pull.h "$build/awake/ep_ready" --case 1
reports "a relaxed store of done alone" src/kernels/ "$build/awake/ep_done" --case 1
reports "a relaxed store of pushed units' words alone" src/simt/bulk.c "$build/awake/ep_pushed" --seeds 1-60
reports "a relaxed store of phases' words alone" "src/kernels/dispatch_drain\|src/simt/bulk.c" "$build/awake/ep_drained" --seeds 1-60
reports "a relaxed store of low latency's entry words alone" src/kernels/ "$build/awake/ll_ready" --seeds 277-300
reports "a relaxed store of low latency's arrival words alone" src/kernels/ "$build/awake/ll_done" --case 1
reports "low latency's dispatch without the proxy fence" src/kernels/ll_send "$build/awake/ll_dispatch_proxy" --case 1
reports "low latency's combine without the proxy fence" src/kernels/ll_make "$build/awake/ll_combine_proxy" --case 1
reports "rows over blanks without the proxy fence of their stage" src/kernels/ll_row_blanks "$build/awake/ll_blanks" --seeds 401-420
reports "rows of a dispatch's chunk counted without order" src/kernels/ll_send_far "$build/awake/ll_chunk" --case 1
reports "messages that forwarders have read counted without order" src/ "$build/awake/ep_forward" --case 1 --seeds 1-20
reports "rows of a combine's chunk counted without order" src/kernels/ll_ship "$build/awake/ll_ship" --case 1
reports "railed messages of a chunk counted without order" src/kernels/ll_send_rail "$build/awake/ll_message" --case 1
reports "a relaxed store of the word of a row that was spread" src/kernels/ll_receive "$build/awake/ll_spread" --case 1
reports "pieces of a railed chunk counted without order" src/kernels/ll_gather "$build/awake/ll_gather" --case 1
# ThreadSanitizer does not model fences; the executor looks that they are there.
for program in ep ll; do
    timeout 120 "$build/awake/${program}_no_fence" --case 1 > "$scratch/log" 2>&1
    if grep -q 'st_fenced of thread .* without a system fence' "$scratch/log"; then
        ok "$program: a signal without the fence before it is reported"
    else
        sed 's/^/# /' "$scratch/log" | head -n 40
        not_ok "$program: a signal without the fence before it is not reported"
    fi
done
reports "a relaxed signal after a put" src/net/p2p.h "$build/awake/net_signal" --case 1
reports "a barrier whose signals are relaxed" src/net/p2p.h "$build/awake/net_signal" --case 13
reports "a wait that does not acquire" src/net/p2p.h "$build/awake/net_acquire" --case 1
reports "a turn at a queue that ends without a release" src/net/ "$build/awake/queue_turn" --case 1
reports "streams whose signals are relaxed" src/ "$build/awake/rail_signal" --case 1
reports "streams whose counters are looked at without acquiring" src/ "$build/awake/rail_acquire" --case 1
reports "streams without the proxy fence after a counter" src/simt/bulk.c "$build/awake/rail_proxy" --case 1
reports "streams with the proxy fence of shared memory there" src/simt/bulk.c "$build/awake/rail_other_proxy" --case 1
reports "a flag raised by a relaxed store" simt_message "$build/awake/simt_relaxed" message
reports "lanes that vote between a store and a load" simt_lanes "$build/awake/simt_vote" lanes
reports "a fence before the barrier that brings what it should cover" simt_fence "$build/awake/simt_early_fence" fence
reports "a fence before an atomic that brings it" simt_relay "$build/awake/simt_early_fence" relay
reports "a bulk store without the proxy fence" simt_pipeline "$build/awake/simt_no_fence" pipeline
reports "a bulk store of shared memory with the proxy fence of global memory" simt_pipeline \
    "$build/awake/simt_other_proxy" pipeline
silent "the right route, dispatch and combine" "$build/test/ep_random_test" --case 1
silent "the right low-latency dispatch and combine" "$build/test/ep_ll_random_test" --case 1
silent "the right dispatch and combine across domains" "$build/test/ep_inter_test" --case 1 --seeds 1-20
silent "the right low-latency dispatch and combine across domains" "$build/test/ep_ll_inter_test" --case 1
silent "the right railed dispatch and combine" "$build/test/ep_ll_rail_test" --case 1
silent "the right signals and waits" "$build/test/net_order_test" --case 1
silent "the right barriers" "$build/test/net_order_test" --case 13
silent "the right turns" "$build/test/queue_test" --case 1
silent "the right streams" "$build/test/rail_test" --seeds 1-3
silent "the right flag and fences" "$build/test/simt_test" message fence relay pipeline
finish
