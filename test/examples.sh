#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The examples do what they say: each exits with 0 and prints one line, and stays short enough to be read at a
# sitting. On the cpu machine unless TERN_MACHINE says otherwise.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/release}
export TERN_MACHINE="${TERN_MACHINE:-cpu}"

# run NAME COMMAND...: exit status 0 and one line on standard output
run()
{
    name=$1
    shift
    timeout 120 "$@" > "$scratch/out" 2> "$scratch/err"
    status=$?
    lines=$(wc -l < "$scratch/out")
    if [ $status -eq 0 ] && [ "$lines" -eq 1 ]; then
        ok "$name: $(cat "$scratch/out")"
    else
        sed 's/^/# /' "$scratch/out" "$scratch/err"
        not_ok "$name: status $status, $lines lines"
    fi
}

found=0
for source in examples/[0-9]*.c; do
    name=$(basename "$source" .c)
    found=$((found + 1))
    run "$name" "$build/examples/$name"
done
[ $found -ge 3 ] && ok "$found examples found" || not_ok "$found examples found, at least 3 expected"

run "01_hello_two_ranks as two processes" "$build/bin/tern-run" -n 2 "$build/examples/01_hello_two_ranks"

wc -l examples/[0-9]*.c | awk '$2 != "total" && $1 >= 150' > "$scratch/errors"
check "every example has fewer than 150 lines" "$scratch/errors"
finish
