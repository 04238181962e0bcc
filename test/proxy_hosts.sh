#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two and four "hosts": network namespaces, each with a veth pair to a bridge in one more. Ranks meet over the
# bridge, have their heaps, and run every operation through their proxies; then one host's cable is pulled in
# the middle, and every other rank must say so, by its number, within the deadline.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

program=${TERN_BUILD:-build/release}/test/proxy_process_test
if [ ! -x "$program" ]; then
    skip "hosts: $program is not built"
    finish
fi
# As root at once; else as root of a user namespace, where the system lets users have one.
if [ -z "${TERN_TEST_IN_NAMESPACE:-}" ]; then
    for how in "unshare -n -m" "unshare -U -r -n -m"; do
        if $how true 2> /dev/null; then
            TERN_TEST_IN_NAMESPACE=1 exec $how sh "$0"
        fi
    done
    skip "hosts: network namespaces are not permitted here"
    finish
fi
if ! have ip || ! have nsenter; then
    skip "hosts: there is no ip or nsenter"
    finish
fi
if ! ip link add bridge0 type bridge 2> "$scratch/errors" || ! ip link set bridge0 up; then
    skip "hosts: no bridge can be made: $(cat "$scratch/errors")"
    finish
fi

keepers=""
end_hosts() { for pid in $keepers; do kill "$pid" 2> /dev/null; done; keepers=""; }
trap 'end_hosts; rm -rf "$scratch"' EXIT

# A process holds each namespace open; its number names the host.
make_host()
{
    unshare -n sleep 600 &
    eval "host$1=$!"
    keepers="$keepers $!"
    pid=$!
    while [ "$(readlink /proc/$pid/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
        sleep 0.02
    done
    ip link add "cable$1" type veth peer name eth0 netns "$pid" && ip link set "cable$1" master bridge0 up &&
        nsenter -t "$pid" -n ip link set lo up && nsenter -t "$pid" -n ip address add "10.77.0.$((1 + $1))/24" dev eth0 &&
        nsenter -t "$pid" -n ip link set eth0 up
}

for i in 0 1 2 3; do
    if ! make_host $i 2> "$scratch/errors"; then
        skip "hosts: no host can be made: $(cat "$scratch/errors")"
        finish
    fi
done

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
        ended $num "$num hosts, $engine: bootstrap, heap and every operation"
    done
    for num in 2 4; do
        cut=$((num - 1))
        start $num "$engine" $cut
        tries=0
        while ! grep -q 'goes on' "$scratch/rank$cut" "$scratch/rank0" && [ $tries -lt 600 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        sleep 0.5
        ip link set "cable$cut" down
        ended $num "$num hosts, $engine: one is cut off, and the others name it"
        if [ "$(cat "$scratch"/rank[0-$((cut - 1))] | grep -cE "# rank [0-9]: rank $cut (has not answered for|closed|cannot be reached)")" -ne $cut ]; then
            not_ok "$num hosts, $engine: not every rank says why it lost rank $cut"
        fi
        ip link set "cable$cut" up
    done
done
finish
