#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The cuda machine without a GPU: its sources and a driver that is played. Shared memory
# (test/cuda/share_mock.c); errors, launches and streams (test/cuda/machine_mock.c).
# Needs the headers of CUDA and nothing else of it.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

compiler=${CC:-gcc}
include=
for folder in "${TERN_CUDA_LIBDIR:+$TERN_CUDA_LIBDIR/../include}" /usr/local/cuda/include; do
    [ -z "$include" ] && [ -n "$folder" ] && [ -f "$folder/cudaTypedefs.h" ] && include=$folder
done
if [ -z "$include" ]; then
    skip "cuda shares: there are no headers of CUDA in /usr/local/cuda/include"
    finish
fi
# played NAME SOURCE...
played()
{
    name=$1
    shift
    if "$compiler" -std=gnu11 -g -Wall -Wextra -Werror -Iinclude -Isrc -isystem "$include" "$@" src/core/*.c \
        -lpthread -o "$scratch/mock" > "$scratch/log" 2>&1 &&
        timeout 60 "$scratch/mock" > "$scratch/log" 2>&1; then
        ok "$(sed -n 's/^ok //p' "$scratch/log")"
    else
        sed 's/^/# /' "$scratch/log" | head -n 40
        not_ok "$name over a played driver"
    fi
}

played "cuda shares" test/cuda/share_mock.c src/machine/cuda_share.c src/machine/cuda_lend.c
played "the cuda machine" test/cuda/machine_mock.c test/cuda/absent.c src/machine/cuda.c \
    src/machine/cuda_driver.c src/machine/cuda_stream.c src/machine/resident.c
finish
