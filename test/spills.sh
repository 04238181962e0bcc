#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# No kernel spills registers or keeps anything in local memory, for any architecture it is built for. ptxas said
# so while the kernels were compiled; the build keeps its words beside the objects.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

if [ -z "${TERN_CUDA:-}" ]; then
    skip "spills and local memory: this build has no CUDA"
    finish
fi
for log in $(find "${TERN_BUILD:-build/release}/obj/cuda" -name '*.ptxas' | sort); do
    awk '
        /Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; arch = part[4] }
        /bytes stack frame/ { stack = $1; store = $5; load = $9 }
        /Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            registers = substr($0, RSTART + 5, RLENGTH - 5)
            if (sub(/^_ZN7tern_ll[0-9]+/, "tern_cuda_ll_", kernel)) { # TERN_KERNEL_AS
                sub(/E[0-9]+.*$/, "", kernel)
            }
            if (kernel !~ /^tern_cuda_/) {
                next
            }
            bad = stack + store + load > 0
            printf "%s %s for %s: %d registers, %d bytes of local memory, %d and %d spilled\n",
                   bad ? "not_ok" : "ok", kernel, arch, registers, stack, store, load
        }' "$log"
done > "$scratch/kernels"
while read -r verdict text; do
    $verdict "$text"
done < "$scratch/kernels"
listed=$(sed -n 's/^ *X(\([a-z_0-9]*\), struct.*/\1/p' src/kernels/kernels.h
    sed -n 's/^TERN_KERNEL(\([a-z_0-9]*\), struct.*/\1/p' test/*_kernel.c)
for name in $listed; do
    grep -q " tern_cuda_$name for " "$scratch/kernels" || not_ok "kernel $name is in no object"
done
finish
