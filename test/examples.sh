#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The examples do what they say: each exits with 0 and prints one line (the overlap, its timelines too, and on the
# cpu machine that its times mean nothing), and stays
# short enough to be read at a sitting. On the cpu machine unless TERN_MACHINE says otherwise.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/release}
export TERN_MACHINE="${TERN_MACHINE:-cpu}"
[ "$TERN_MACHINE" = cpu ] && cautions=1 || cautions=0

# run NAME COMMAND...: exit status 0 and one line on standard output; of 04_overlap nine, four of them bars, and a
# tenth on the cpu machine
run()
{
    name=$1
    shift
    case $name in 04_*) want=$((9 + cautions)) bars=4 caution=$cautions ;; *) want=1 bars=0 caution=0 ;; esac
    timeout 120 "$@" > "$scratch/out" 2> "$scratch/err"
    status=$?
    lines=$(wc -l < "$scratch/out")
    if [ $status -eq 0 ] && [ "$lines" -eq $want ] &&
        [ "$(grep -c '^caution: ' "$scratch/out")" -eq $caution ] && [ "$(grep -c '^  [AB] |.*D.*|$' "$scratch/out")" -eq $bars ]; then
        ok "$name: $(tail -n 1 "$scratch/out")"
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
[ $found -ge 7 ] && ok "$found examples found" || not_ok "$found examples found, at least 7 expected"

run "01_hello_two_ranks as two processes" "$build/bin/tern-run" -n 2 "$build/examples/01_hello_two_ranks"

run "02_moe_layer as four processes" "$build/bin/tern-run" -n 4 "$build/examples/02_moe_layer"

run "04_overlap as two processes" "$build/bin/tern-run" -n 2 "$build/examples/04_overlap"

run "06_put_signal as three processes" "$build/bin/tern-run" -n 3 "$build/examples/06_put_signal"

for by in softnic proxy; do
    run "06_put_signal by $by" "$build/examples/06_put_signal" "$by"
done
[ "$TERN_MACHINE" = cpu ] &&
    run "06_put_signal by softnic as three processes" "$build/bin/tern-run" -n 3 "$build/examples/06_put_signal" softnic

run "05_low_latency as two processes" "$build/bin/tern-run" -n 2 "$build/examples/05_low_latency"

run "07_recovery as three processes, of which one ends" "$build/bin/tern-run" -n 3 --keep-going "$build/examples/07_recovery"

# refuses COUNT NAME: another number of processes than the example has ranks
refuses()
{
    timeout 120 "$build/bin/tern-run" -n "$1" "$build/examples/$2" > "$scratch/out" 2> "$scratch/err"
    status=$?
    if [ $status -eq 1 ] && [ ! -s "$scratch/out" ] && [ "$(grep -c "tern-run started $1" "$scratch/err")" -eq 1 ]; then
        ok "$2 as $1 processes says why not, once"
    else
        sed 's/^/# /' "$scratch/out" "$scratch/err"
        not_ok "$2 as $1 processes: status $status"
    fi
}
refuses 3 01_hello_two_ranks
refuses 1 01_hello_two_ranks
refuses 2 02_moe_layer
refuses 3 04_overlap
refuses 2 07_recovery

wc -l examples/[0-9]*.c | awk '$2 != "total" && $1 >= 150' > "$scratch/errors"
check "every example has fewer than 150 lines" "$scratch/errors"
finish
