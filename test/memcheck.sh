#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The kernels touch no memory that is not theirs, and no shared memory that another thread is at: test programs under
# compute-sanitizer's memcheck and racecheck, on a GPU.
# Small shapes, because every access is checked; a long deadline, because every kernel is slow; no NIC in software,
# which is a kernel that stays, beside which no other begins there. `make
# check-memcheck` runs this; it is no part of `make check`.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/release}
sanitizer=compute-sanitizer
have $sanitizer || sanitizer=/usr/local/cuda/bin/compute-sanitizer
if ! have "$sanitizer"; then
    skip "memcheck: there is no compute-sanitizer on PATH or in /usr/local/cuda/bin"
    finish
fi
if ! "$build/bin/tern-info" 2> /dev/null | sed '1,/^machine cuda/d' | grep -q '^ *device'; then
    skip "memcheck: there is no GPU here that Tern can use"
    finish
fi
export TERN_MACHINE=cuda TERN_TEST_SCALE=2 TERN_TIMEOUT_MS=60000 TERN_TEST_SANITIZER=1

# checked TOOL PROGRAM...
checked()
{
    tool=$1
    shift
    for name in "$@"; do
        # Calls that fail are handled, and told, by whoever makes them: access that peers have already, for one.
        api=
        [ "$tool" != memcheck ] || api='--report-api-errors no'
        timeout 540 "$sanitizer" --tool "$tool" $api --error-exitcode 9 "$build/test/$name" > "$scratch/log" 2>&1
        status=$?
        if [ $status -eq 0 ]; then
            ok "$name under $tool: $(grep -E '^[0-9]+ passed' "$scratch/log")"
        else
            sed 's/^/# /' "$scratch/log" | tail -n 60
            not_ok "$name under $tool: exit status $status"
        fi
    done
}
checked memcheck ep_random_test ep_reuse_test ep_ll_random_test ep_inter_test net_ops_test net_kernel_test
checked racecheck net_ops_test net_kernel_test
finish
