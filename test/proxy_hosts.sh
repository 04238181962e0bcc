#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two and four "hosts" (hosts.inc), which are network namespaces, with a rank each that uses the public calls alone
# (hosts_test.c). Ranks meet over the network between them, have their windows, and run every operation, of kernels
# and of the host, through their proxies; then one host's cable is pulled while kernels run, and every other rank must
# say so, by its number, within the deadline, and reach those that are left.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

program=${TERN_BUILD:-build/release}/test/hosts_test
if [ ! -x "$program" ]; then
    skip "hosts: $program is not built"
    finish
fi
. test/hosts.inc
make_hosts 4

port=20000
# start NUM ENGINE [CUT]: a rank on each of NUM hosts.
start()
{
    port=$((port + 1))
    for i in $(seq 0 $(($1 - 1))); do
        eval "pid=\$host$i"
        : > "$scratch/rank$i"
        TERN_ID="10.77.0.1:$port/proxy" TERN_RANK=$i TERN_NUM_RANKS=$1 TERN_PROXY=$2 ${3:+env TERN_TEST_CUT=$3} \
            timeout 90 nsenter -t "$pid" -n "$program" > "$scratch/rank$i" 2>&1 &
        eval "rank$i=$!"
    done
}

# ended NUM NAME: all ranks end well.
ended()
{
    bad=0
    for i in $(seq 0 $(($1 - 1))); do
        eval "pid=\$rank$i"
        wait "$pid" || bad=1
    done
    if [ $bad = 0 ]; then
        ok "$2"
    else
        for i in $(seq 0 $(($1 - 1))); do
            sed "s/^/# $i: /" "$scratch/rank$i"
        done
        not_ok "$2"
    fi
}

engines="tcp"
if TERN_ID="127.0.0.1:19999/probe" TERN_RANK=0 TERN_NUM_RANKS=1 TERN_PROXY="fabric:tcp;ofi_rxm" nsenter -t "$host0" -n \
    timeout 60 "$program" > /dev/null 2>&1; then
    engines="tcp fabric:tcp;ofi_rxm"
else
    skip "hosts: there is no libfabric with tcp;ofi_rxm here"
fi
for engine in $engines; do
    for num in 2 4; do
        start $num "$engine"
        ended $num "$num hosts, $engine: bootstrap, windows and every operation"
    done
    for num in 2 4; do
        cut=$((num - 1))
        start $num "$engine" $cut
        tries=0
        while [ "$(cat "$scratch"/rank? | grep -c 'goes on')" -lt "$num" ] && [ $tries -lt 600 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        sleep 0.5
        ip link set "cable$cut" down
        ended $num "$num hosts, $engine: one is cut off, and the others name it"
        # Of its wait, or of the put that follows, if all that it had sent there was answered before.
        why="# rank [0-9]: .*rank $cut (has not answered for|closed|cannot be reached)"
        if [ "$(grep -lE "$why" "$scratch"/rank[0-$((cut - 1))] | wc -l)" -ne $cut ]; then
            cat "$scratch"/rank?
            not_ok "$num hosts, $engine: not every rank says why it lost rank $cut"
        fi
        ip link set "cable$cut" up
    done
done
finish
