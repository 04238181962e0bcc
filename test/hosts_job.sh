#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The main job across two "hosts" (hosts.inc) of two processes each: `tern-bench demo`, and low latency by
# `tern-bench ll`, real routing, all elements compared with the reference, by the proxy over TCP and over libfabric.
# The two processes of a host are a domain, which shares memory; between hosts there is only the cable. Then the
# cable is cut in the middle of a long run of either: each of the four processes must end by itself, with status 2
# and a sentence that names a rank of the other host, and leave nothing behind.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

bench=${TERN_BUILD:-build/release}/bin/tern-bench
if [ ! -x "$bench" ]; then
    skip "hosts: $bench is not built"
    finish
fi
. test/hosts.inc
make_hosts 2

ranks="0 1 2 3"
deadline_ms=3000
# What all waits together may take after the cut: a kernel's deadline, or one of the host's and rank 0's answer;
# the rest is for a machine with other things to do.
limit_s=12
port=21000
export TERN_MACHINE=cpu TERN_CPU_SMS=4

# start ENGINE COMMAND...: two ranks on each host.
start()
{
    engine=$1
    shift
    port=$((port + 1))
    for r in $ranks; do
        eval "pid=\$host$((r / 2))"
        TERN_ID="10.77.0.1:$port/job" TERN_RANK=$r TERN_NUM_RANKS=4 TERN_PROXY=$engine \
            timeout -k 5 100 nsenter -t "$pid" -n "$bench" "$@" > "$scratch/out$r" 2> "$scratch/err$r" &
        eval "rank$r=$!"
    done
}

# Processes on the hosts, other than those that hold them open; and what libfabric may leave in shared memory.
left_behind()
{
    for pid in $keepers; do
        for process in /proc/[0-9]*; do
            if [ "${process#/proc/}" != "$pid" ] &&
                [ "$(readlink "$process/ns/net" 2> /dev/null)" = "$(readlink "/proc/$pid/ns/net")" ]; then
                tr '\0' ' ' < "$process/cmdline"
            fi
        done
    done
    ls /dev/shm | grep -v '^sem\.mp-' # of Python, in other tests
}

# Bytes that have come over the cable of host 1.
carried() { ip -s link show cable1 | awk '/RX:/ { getline; print $1 }'; }

# demo ENGINE: every element is right, and rows have crossed the cable.
demo()
{
    before=$(carried)
    start "$1" demo --iters 1
    collect
    if [ "$statuses" = " 0 0 0 0" ] && grep -q '^# result .* 0 of [1-9][0-9]* elements wrong: ok' "$scratch/out0" &&
        grep -q 'domains of 2 ranks' "$scratch/out0" && [ $(($(carried) - before)) -gt 1000000 ]; then
        ok "2 hosts, $1: the main job, every element right"
    else
        show
        not_ok "2 hosts, $1: the main job (statuses$statuses, $(($(carried) - before)) bytes over the cable)"
    fi
}

# low_latency ENGINE: the same of low latency, whole and in two phases.
low_latency()
{
    for phases in "" --hook; do
        before=$(carried)
        # shellcheck disable=SC2086
        start "$1" ll --routing data/routing_topk_idx.npy --tokens 32 --hidden 512 --iters 3 $phases
        collect
        if [ "$statuses" = " 0 0 0 0" ] && grep -q '^# result .* 0 of [1-9][0-9]* elements wrong: ok' "$scratch/out0" &&
            [ $(($(carried) - before)) -gt 200000 ]; then
            ok "2 hosts, $1: low latency${phases:+ in two phases}, every element right"
        else
            show
            not_ok "2 hosts, $1: low latency $phases (statuses$statuses, $(($(carried) - before)) bytes over the cable)"
        fi
    done
}

# cut_off ENGINE COMMAND: while rows cross the cable.
cut_off()
{
    rest=$(left_behind)
    before=$(carried)
    export TERN_TIMEOUT_MS=$deadline_ms
    start "$1" "$2" --routing data/routing_topk_idx.npy --tokens 32 --hidden 512 --warmup 1000 --iters 100000
    unset TERN_TIMEOUT_MS
    tries=0
    while [ $(($(carried) - before)) -lt 3000000 ] && [ $tries -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    ip link set cable1 down
    begin=$(date +%s)
    collect
    took=$(($(date +%s) - begin))
    ip link set cable1 up
    if [ "$statuses" = " 2 2 2 2" ] && [ $took -le $limit_s ]; then
        ok "2 hosts, $1, $2: the cable is cut, and every process ends"
    else
        show
        not_ok "2 hosts, $1, $2: the cable is cut: statuses$statuses, after $took s"
    fi
    for r in $ranks; do
        far=$([ "$r" -lt 2 ] && echo '[23]' || echo '[01]')
        if ! grep -qE "^tern-bench: .*ranks? ($far\b|[0-9] \(this one\), $far)" "$scratch/err$r"; then
            echo "rank $r: $(cat "$scratch/err$r")"
        fi
    done > "$scratch/unnamed"
    check "2 hosts, $1, $2: each names a rank of the other host" "$scratch/unnamed"
    left_behind | grep -vxF "$rest" > "$scratch/left"
    check "2 hosts, $1, $2: nothing is left" "$scratch/left"
}

engines="tcp"
if TERN_ID="127.0.0.1:20999/probe" TERN_RANK=0 TERN_NUM_RANKS=1 TERN_PROXY="fabric:tcp;ofi_rxm" nsenter -t "$host0" -n \
    timeout 60 "$bench" put --transport proxy-libfabric --bytes 8 --iters 1 > "$scratch/errors" 2>&1; then
    engines="tcp fabric:tcp;ofi_rxm"
else
    sed 's/^/# /' "$scratch/errors"
    skip "hosts: there is no libfabric with tcp;ofi_rxm here"
fi
for engine in $engines; do
    demo "$engine"
    low_latency "$engine"
    cut_off "$engine" ep
    cut_off "$engine" ll
done
finish
