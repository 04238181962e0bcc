#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Route, dispatch and combine, those of low latency too, inside a domain and across domains, cost no more than
# test/cost.expected says, on the cpu machine and without a clock:
#
#   counts        what their kernels ask of the executor: barriers, votes, copies and their bytes, releases
#                 (signals are), atomics; and of proxies and NICs: requests, entries. No compiler, processor or
#                 schedule changes these; they must be equal. Those that waiting alters, by a little and across
#                 domains only, have a "~": growth of more than 10 % fails
#   instructions  of the host in a public call, and of the kernels themselves (the executor's own apart), counted
#                 by callgrind. With the compiler of the recording, growth of more than 10 % fails, and of more
#                 than 20 % in dispatch and combine, whose threads look again and again while they wait. With
#                 another compiler only a doubling fails
#
#     test/cost.sh             compares
#     test/cost.sh --record    writes test/cost.expected anew; say in the change what grew, and why
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/release}
program=$build/test/cost_test
expected=test/cost.expected
seconds=300

# "gcc 12 x86_64": what instructions depend on.
compiler()
{
    name=${CC:-$(sed 's/ .*//' "$build/.compile")}
    kind=gcc
    $name --version | grep -q clang && kind=clang
    echo "$kind $($name -dumpversion | sed 's/\..*//') $(uname -m)"
}

# why_not: a reason not to count instructions, or nothing.
why_not()
{
    if ! have valgrind; then
        echo "there is no valgrind"
    elif [ "${TERN_VARIANT:-release}" != release ]; then
        echo "this is the variant $TERN_VARIANT"
    elif ! grep -q -- ' -O2 ' "$build/.compile"; then
        echo "the build has other flags than -O2"
    fi
}

# callgrind CASE ROUNDS: "function, own instructions, calls, instructions with what they call" for every function
# into $scratch/functions. The program goes without line numbers, which callgrind may be too old to read.
callgrind()
{
    cp "$program" "$scratch/program" || return 1
    have strip && strip -g "$scratch/program"
    LD_BIND_NOW=1 timeout -k 10 $seconds valgrind --tool=callgrind --callgrind-out-file="$scratch/callgrind" \
        "$scratch/program" --rounds "$1" "$2" > "$scratch/log" 2>&1 || return 1
    awk '
        # A function is named once, "(7) name", and is "(7)" from then on; levels of recursion are marked.
        function named(text,  id) {
            id = substr(text, 1, index(text, ")"))
            text = substr(text, length(id) + 2)
            sub(/\047[0-9]+$/, "", text)
            if (text != "") {
                names[id] = text
            }
            return names[id]
        }
        /^fn=/ { here = named(substr($0, 4)); seen[here] = 1; next }
        /^cfn=/ { callee = named(substr($0, 5)); seen[callee] = 1; next }
        /^calls=/ { calls[callee] += substr($1, 7); getline; whole[callee] += $2; next }
        /^[0-9+*-]/ { own[here] += $2 }
        END {
            for (name in seen) {
                printf "%s %d %d %d\n", name, own[name], calls[name], whole[name]
            }
        }' "$scratch/callgrind" > "$scratch/functions"
}

# calls CASE NAME...: instructions of one call of each.
calls()
{
    callgrind "$1" 20 || return 1
    shift
    for name; do
        awk -v name="$name" '$1 == name && $3 { print "host", name, int($4 / $3) }' "$scratch/functions"
    done
}

# kernels CASE ROUNDS NAME...: instructions of each in so many rounds.
kernels()
{
    callgrind "$1" "$2" || return 1
    shift 2
    for name; do
        awk -v name="$name" '$1 == "tern_cpu_" name || $1 == name "_body" { sum += $2 }
            END { if (sum) printf "kernel %s %d\n", name, sum }' "$scratch/functions"
    done
}

# instructions FILE: "host NAME COUNT", a call; "kernel NAME COUNT", in all of a run.
instructions()
{
    : > "$1"
    calls rank-1 tern_route_update tern_dispatch tern_combine >> "$1" || return 1
    kernels rank-256 2 route dispatch_bulk combine_bulk >> "$1" || return 1
    calls ll-expert-1 tern_ll_dispatch tern_ll_combine >> "$1" || return 1
    kernels ll-summed-2 8 ll_dispatch_words ll_combine_blanks >> "$1" || return 1
    kernels ll-blank-32 2 ll_dispatch_blanks_bulk >> "$1" || return 1
    kernels ll-ahead-32 2 ll_weights_ahead >> "$1" || return 1
    kernels ll-summed-32 2 ll_dispatch_bulk ll_combine_bulk >> "$1" || return 1
    kernels far-rank-64 1 route_inter dispatch_inter_bulk combine_inter_bulk >> "$1" || return 1
    kernels far-ll-summed-32 1 ll_dispatch_inter_bulk ll_combine_inter_bulk >> "$1" || return 1
    kernels rail-summed-32 1 ll_dispatch_rail_bulk ll_combine_rail_bulk >> "$1" || return 1
    [ "$(wc -l < "$1")" -eq 21 ] || { echo "functions are missing:"; cat "$1"; } >> "$scratch/log"
    [ "$(wc -l < "$1")" -eq 21 ]
}

record()
{
    reason=$(why_not)
    if [ -n "$reason" ]; then
        echo "test/cost.sh: nothing recorded: $reason" >&2
        exit 1
    fi
    ${MAKE:-make} "$program" && "$program" --counts > "$scratch/counts" || exit 1
    instructions "$scratch/instructions" || { tail "$scratch/log" >&2; exit 1; }
    {
        echo "# Written by test/cost.sh --record, which says what the figures are."
        sed 's/^/counts /' "$scratch/counts"
        echo "compiler $(compiler)"
        sed 's/^/instructions /' "$scratch/instructions"
    } > "$scratch/new" && cat "$scratch/new" > "$expected"
    echo "recorded in $expected"
}

# compare_counts CASE OPERATION
compare_counts()
{
    { grep "^counts $1 $2 " "$expected" || echo counts; sed -n "s/^$1 $2 /found /p" "$scratch/counts"; } | awk '
        {
            for (i = 2; i <= NF; i++) {
                if (split($i, part, /[=~]/) == 2) {
                    value[$1 == "found", part[1]] = part[2]
                    seen[part[1]] = 1
                    about[part[1]] = $i ~ /~/
                }
            }
        }
        END {
            for (name in seen) {
                was = value[0, name] + 0
                is = value[1, name] + 0
                if (about[name] ? is * 10 > was * 11 : is != was) {
                    printf "%s is %d, recorded is %d%s\n", name, is, was, about[name] ? ", allowed 10 % more" : ""
                }
            }
        }' > "$scratch/errors"
    [ -s "$scratch/errors" ] && echo "if that is meant: test/cost.sh --record" >> "$scratch/errors"
    check "counts of $2, $1" "$scratch/errors"
}

# compare_instructions KIND NAME FOUND
compare_instructions()
{
    limit=200
    if [ "$(sed -n 's/^compiler //p' "$expected")" = "$(compiler)" ]; then
        limit=110
        case $2 in dispatch_* | combine_* | ll_*) limit=120 ;; esac
    fi
    recorded=$(sed -n "s/^instructions $1 $2 //p" "$expected")
    text="instructions of $1 $2: $3, recorded ${recorded:-none}"
    if [ -z "$recorded" ] || [ $(($3 * 100)) -gt $((recorded * limit)) ]; then
        echo "# allowed are $limit per cent; if that is meant: test/cost.sh --record"
        not_ok "$text"
    elif [ $((recorded * 100)) -gt $(($3 * limit)) ]; then
        ok "$text; test/cost.sh --record keeps the gain"
    else
        ok "$text"
    fi
}

if [ "${1:-}" = --record ]; then
    record
    exit
fi
if ! "$program" --counts > "$scratch/counts"; then
    not_ok "$program --counts"
    finish
fi
while read -r name operation rest; do
    compare_counts "$name" "$operation"
done < "$scratch/counts"
sed -n 's/^counts \([^ ]* [^ ]*\) .*/\1/p' "$expected" > "$scratch/wanted"
sed 's/^\([^ ]* [^ ]*\) .*/\1/' "$scratch/counts" | cmp - "$scratch/wanted" > "$scratch/errors" 2>&1
check "the recorded cases are those that were run" "$scratch/errors"

reason=$(why_not)
recorded_on=$(sed -n 's/^compiler .* //p' "$expected")
if [ -z "$reason" ] && [ "$recorded_on" != "$(uname -m)" ]; then
    reason="recorded on $recorded_on, this is $(uname -m)"
fi
if [ -n "$reason" ]; then
    skip "instructions: $reason"
elif ! instructions "$scratch/instructions"; then
    sed 's/^/# /' "$scratch/log"
    not_ok "callgrind on $program"
else
    while read -r kind name found; do
        compare_instructions "$kind" "$name" "$found"
    done < "$scratch/instructions"
fi
finish
