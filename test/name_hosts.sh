#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Two "hosts" (hosts.inc) of two ranks each, which meet at an agreed name of host 0. As on Debian, host 0 takes its own
# name for 127.0.1.1, where nobody else reaches it; host 1 has two addresses for it, and nobody is at the first. All
# meet nevertheless, and reach each other afterwards: low latency, through the proxy over TCP.
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

printf '127.0.0.1 localhost\n127.0.1.1 head.tern.test head\n' > "$scratch/names0"
printf '127.0.0.1 localhost\n10.77.0.99 head.tern.test\n10.77.0.1 head.tern.test\n' > "$scratch/names1"
if ! unshare -m sh -c "mount --bind '$scratch/names0' /etc/hosts && getent hosts head.tern.test" > "$scratch/errors" 2>&1; then
    sed 's/^/# /' "$scratch/errors"
    skip "hosts: names cannot be given here"
    finish
fi

ranks="0 1 2 3"
for r in $ranks; do
    host=$((r / 2))
    eval "pid=\$host$host"
    TERN_MACHINE=cpu TERN_CPU_SMS=4 TERN_TIMEOUT_MS=20000 TERN_ID="head.tern.test:23001/names" TERN_RANK=$r \
        TERN_NUM_RANKS=4 TERN_PROXY=tcp timeout -k 5 100 nsenter -t "$pid" -n unshare -m sh -c \
        "mount --bind '$scratch/names$host' /etc/hosts && exec '$bench' ll --routing data/routing_topk_idx.npy \
        --tokens 32 --hidden 512 --iters 3" \
        > "$scratch/out$r" 2> "$scratch/err$r" &
    eval "rank$r=$!"
done
collect
if [ "$statuses" = " 0 0 0 0" ] && grep -q '^# result .* 0 of [1-9][0-9]* elements wrong: ok' "$scratch/out0"; then
    ok "2 hosts meet at a name that each takes for another address"
else
    show
    not_ok "2 hosts meet at a name (statuses$statuses)"
fi
finish
