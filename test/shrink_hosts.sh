#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Three "hosts" (hosts.inc) of two ranks each. The cable of the first, where rank 0 is, to which all are connected, is
# cut: the four ranks of the other two find each other and go on, more than half of all; the two that were cut off
# hear who is missing, and may not.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

program=${TERN_BUILD:-build/release}/test/shrink_test
if [ ! -x "$program" ]; then
    skip "hosts: $program is not built"
    finish
fi
. test/hosts.inc
make_hosts 3

ranks="0 1 2 3 4 5"
for r in $ranks; do
    eval "pid=\$host$((r / 2))"
    : > "$scratch/rank$r"
    TERN_MACHINE=cpu TERN_ID="10.77.0.1:22001/shrink" TERN_RANK=$r TERN_NUM_RANKS=6 \
        timeout 80 nsenter -t "$pid" -n "$program" > "$scratch/rank$r" 2>&1 &
    eval "rank$r=$!"
done
tries=0
while [ "$(cat "$scratch"/rank? | grep -c 'goes on')" -lt 6 ] && [ $tries -lt 600 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
ip link set cable0 down
for r in $ranks; do
    eval "pid=\$rank$r"
    if wait "$pid"; then
        ok "rank $r of 6: $([ "$r" -lt 2 ] && echo 'is cut off, and does not go on' || echo 'goes on with the three others')"
    else
        sed "s/^/# $r: /" "$scratch/rank$r"
        not_ok "rank $r of 6"
    fi
done
finish
