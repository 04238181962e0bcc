#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tern-bench on the cpu machine: what it measures is right (#wrong is 0 in every row), a planted error is seen and
# decides the exit status, the JSON is JSON and says the same as the table, and options that make no sense are
# refused with the option and the value in the sentence.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/release}
bench=$build/bin/tern-bench
ids=data/routing_topk_idx.npy
export TERN_MACHINE=cpu

# run STATUS COMMAND...: runs, keeps both outputs, passes if the exit status is as wanted
run()
{
    wanted=$1
    shift
    timeout 200 "$@" > "$scratch/out" 2> "$scratch/err"
    status=$?
    [ $status -eq "$wanted" ] && return 0
    sed 's/^/# /' "$scratch/out" "$scratch/err"
    echo "# status $status, expected $wanted: $*"
    return 1
}

# sum_wrong: of the last column of all rows; "none" if no row has a number there
sum_wrong() { awk '/^[^#]/ && $NF ~ /^[0-9]+$/ { n += $NF; seen = 1 } END { print seen ? n : "none" }' "$scratch/out"; }

# right COMMAND NAME OPTION...: a run of `tern-bench ep` or `tern-bench ll` with nothing wrong
right()
{
    command=$1
    name="$1 is right: $2"
    shift 2
    if run 0 "$bench" "$command" --ranks 4 --experts 16 --topk 3 --tokens 24 --hidden 128 --iters 2 "$@" && [ "$(sum_wrong)" = 0 ]; then
        ok "$name"
    else
        not_ok "$name (#wrong $(sum_wrong))"
    fi
}
right ep "defaults"
right ep "several sizes, one of them 0" --tokens 0,1,7
right ep "by expert, padded" --layout expert --align 8
right ep "combine by copy engine" --combine engine
right ep "fp8 rows with scales" --dtype fp8
right ep "cast to fp8, by expert" --dtype cast --layout expert
right ep "outputs outside the window" --out tensor
right ep "rows alone" --meta 0
right ep "loads and stores" --transfer plain --dtype fp8
right ep "one rank" --ranks 1

right ll "defaults"
right ll "several numbers of tokens, one of them 0" --tokens 0,1,7
right ll "in two phases" --hook
right ll "in two phases, three batches in flight" --hook --lanes 3 --tokens 5
right ll "replayed graphs" --graph
right ll "replayed graphs, two phases, two lanes" --graph --hook --lanes 2 --tokens 5
right ll "weights at dispatch, BF16" --weights dispatch --cast none
right ll "scales as exponents" --cast ue8m0 --weights dispatch --hidden 640
right ll "scales rounded up" --cast pow2
right ll "combine compressed to 10-bit logarithms" --compression log10
right ll "sums compressed to FP8" --compression fp8 --weights dispatch --hidden 640
right ll "loads and stores, slabs and counts alone" --transfer plain --meta 0
right ll "by rank, with weights at dispatch unless asked" --layout rank --tokens 0,1,9
if grep -q 'weights at dispatch, by rank' "$scratch/out" && ! grep -q waited "$scratch/out"; then
    ok "ll says so, and shows no waiting that was not measured"
else
    not_ok "ll says so, and shows no waiting that was not measured"
fi
right ll "by rank, scales as exponents, two lanes" --layout rank --weights dispatch --cast ue8m0 --hidden 640 --lanes 2
right ll "with statistics" --statistics --lanes 2
if awk '/^#tokens/ { for (i = 1; i <= NF; i++) at = $i == "waited" ? i : at } / dispatch / && at && $at > 0 { seen = 1 } END { exit !seen }' "$scratch/out"; then
    ok "ll shows that ranks waited for each other"
else
    not_ok "ll shows that ranks waited for each other"
fi
right ll "with statistics, by rank, in a graph" --statistics --layout rank --weights dispatch --graph
right ll "rank 2 masked" --mask 2
right ll "rank 0 masked, by rank, in two phases" --mask 0 --layout rank --weights dispatch --hook
right ll "rank 3 masked, in a graph" --mask 3 --graph --compression log10
right ll "one rank" --ranks 1
right ll "one rank is named more often" --skew 150

if run 0 "$bench" ep --ranks 4 --tokens 32 --hidden 128 --iters 1 --routing $ids --weights data/routing_topk_weights.npy --layer 1 &&
    [ "$(sum_wrong)" = 0 ] && grep -q 'routing\.1' "$scratch/out"; then
    ok "ep reads recorded routing"
else
    not_ok "ep reads recorded routing"
fi

if run 0 "$bench" ll --ranks 4 --tokens 32 --hidden 128 --iters 1 --routing $ids --layer 1 &&
    [ "$(sum_wrong)" = 0 ] && grep -q 'top-8 of 256 experts' "$scratch/out"; then
    ok "ll reads recorded routing"
else
    not_ok "ll reads recorded routing"
fi

if run 0 "$bench" ep --ranks 4 --tokens 256 --hidden 64 --iters 1 --skew 130 &&
    [ "$(sum_wrong)" = 0 ] && grep -qE 'skew130 dispatch .* 1\.(2[789]|3[0123]) ' "$scratch/out"; then
    ok "one rank receives 1.3 times the mean"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "one rank receives 1.3 times the mean"
fi

# Low latency counts what it was given: a (token, rank) by rank, where --skew counts too, a (token, expert) by expert.
for layout in rank expert; do
    if run 0 "$bench" ll --ranks 4 --experts 16 --topk 3 --tokens 256 --hidden 64 --iters 1 --skew 130 --layout $layout &&
        awk -v by=$layout '/^#tokens/ { for (i = 1; i <= NF; i++) at = $i == "skew" ? i : at }
            / (dispatch|combine) / && at && (by == "rank" ? $at > 1.26 && $at < 1.34 : $at > 1.36) { n++ }
            END { exit n != 2 }' "$scratch/out"; then
        ok "ll shows the skew of rows by $layout"
    else
        sed 's/^/# /' "$scratch/out"
        not_ok "ll shows the skew of rows by $layout"
    fi
done

if run 0 "$build/bin/tern-run" -n 3 "$bench" ep --experts 12 --topk 2 --tokens 16 --hidden 64 --iters 2 &&
    [ "$(sum_wrong)" = 0 ] && [ "$(grep -c dispatch "$scratch/out")" = 2 ] && grep -q 'a process each' "$scratch/out"; then
    ok "under tern-run one rank prints for all" # one row, and the word in a note
else
    not_ok "under tern-run one rank prints for all"
fi
if run 0 "$build/bin/tern-run" -n 3 "$bench" ll --experts 12 --topk 2 --tokens 16 --hidden 64 --iters 2 --mask 1 &&
    [ "$(sum_wrong)" = 0 ] && grep -q 'rank 1 takes no part' "$scratch/out"; then
    ok "ll under tern-run with a masked process"
else
    not_ok "ll under tern-run with a masked process"
fi
if run 0 "$build/bin/tern-run" -n 3 "$bench" ll --experts 12 --topk 2 --tokens 16 --hidden 64 --iters 2 --hook --graph &&
    [ "$(sum_wrong)" = 0 ] && [ "$(grep -cE '^ +16 ' "$scratch/out")" = 7 ] && grep -q 'a process each' "$scratch/out"; then
    ok "ll under tern-run: a row an operation and a phase, from one rank"
else
    not_ok "ll under tern-run: a row an operation and a phase, from one rank"
fi

if grep -qE '^# result +0 of [1-9][0-9]* elements wrong: ok$' "$scratch/out"; then
    ok "the result says how many elements were compared"
else
    not_ok "the result says how many elements were compared"
fi

# A check that cannot fail proves nothing.
for command in ep ll; do
    for operation in dispatch combine; do
        name="$command: one flipped bit of $operation is one wrong element and exit status 1"
        if run 1 "$bench" $command --ranks 2 --experts 4 --topk 2 --tokens 8 --hidden 64 --iters 1 --corrupt $operation &&
            [ "$(sum_wrong)" = 1 ] && grep -E "^[^#]* $operation .* 1\$" "$scratch/out" > /dev/null; then
            ok "$name"
        else
            not_ok "$name (#wrong $(sum_wrong))"
        fi
    done
done

if run 0 "$bench" wire --ranks 2 --iters 2 --json "$scratch/wire.json" && [ "$(sum_wrong)" = 0 ] &&
    [ "$(grep -cE '^ +(store|load|push|pull|engine|local|flag) ' "$scratch/out")" -ge 9 ]; then
    ok "wire measures every mover and moves right"
else
    not_ok "wire measures every mover and moves right"
fi

# driven ROWS NAME COMMAND OPTION...: operations of kernels, so many rows, nothing wrong
driven()
{
    rows=$1
    name="$3 is right: $2"
    shift 2
    if run 0 "$bench" "$@" && [ "$(sum_wrong)" = 0 ] && [ "$(grep -cE '^ ' "$scratch/out")" = "$rows" ] &&
        grep -qE '^# result +0 of [1-9][0-9]* (bytes|values) wrong: ok$' "$scratch/out"; then
        ok "$name"
    else
        not_ok "$name (#wrong $(sum_wrong))"
    fi
}
driven 11 "every size, by warps" put --ranks 3 --iters 1
driven 11 "every size, by warps" get --ranks 3 --iters 1
driven 3 "by threads, at odd places" put --ranks 2 --iters 1 --scope thread --warps 2 --bytes 1,13,100
driven 2 "by blocks, on two processors, by three queues" get --ranks 4 --iters 1 --scope block --sms 2 --queues 3 \
    --bytes 40,4097
driven 4 "bulk copies of warps" put --ranks 3 --iters 1 --transfer bulk --bytes 3,1000,4097,57344
driven 3 "bulk copies of blocks" put --ranks 2 --iters 1 --transfer bulk --scope block --bytes 16,5000,57344
driven 3 "bulk copies of blocks" get --ranks 2 --iters 1 --transfer bulk --scope block --bytes 16,5000,57344
driven 2 "a rank alone" put --ranks 1 --iters 1 --bytes 8,1024
driven 13 "every size, by warps" pingpong --ranks 3 --iters 1
driven 3 "by a block" pingpong --ranks 2 --iters 1 --scope block --bytes 1001
driven 3 "by a thread" pingpong --ranks 2 --iters 1 --scope thread --bytes 1001
driven 4 "add and set of words of both widths" signal --ranks 2 --iters 2 --seed 7
driven 26 "every operation on words of both widths" atomic --ranks 3 --iters 1
driven 1 "by a warp" barrier --ranks 4 --iters 2
driven 1 "by a block" barrier --ranks 3 --iters 1 --scope block --warps 3
driven 1 "by a thread, a rank alone" barrier --ranks 1 --iters 1 --scope thread
if run 0 "$build/bin/tern-run" -n 3 "$bench" put --iters 1 --bytes 64,4096 && [ "$(sum_wrong)" = 0 ] &&
    [ "$(grep -cE '^ +put ' "$scratch/out")" = 2 ] &&
    run 0 "$build/bin/tern-run" -n 3 "$bench" atomic --iters 1 && [ "$(sum_wrong)" = 0 ] &&
    run 0 "$build/bin/tern-run" -n 3 "$bench" barrier --iters 1 && [ "$(sum_wrong)" = 0 ]; then
    ok "put, atomic and barrier under tern-run"
else
    not_ok "put, atomic and barrier under tern-run"
fi
# Of a put with signal there are two checks, of what was seen and of what was moved: each sees a bit of its own.
for planted in "put 2 --bytes 1,4096" "get 1 --bytes 64 --transfer bulk" "atomic 26" "signal 4" "pingpong 4 --bytes 100" "barrier 1"; do
    set -- $planted
    command=$1 wrong=$2
    shift 2
    if run 1 "$bench" "$command" --ranks 2 --iters 1 --corrupt flip "$@" && [ "$(sum_wrong)" = "$wrong" ]; then
        ok "$command: a flipped bit in each check is seen"
    else
        not_ok "$command: a flipped bit in each check is seen (#wrong $(sum_wrong), expected $wrong)"
    fi
done
run 0 "$bench" pingpong --ranks 2 --iters 1 --bytes 8,4096 --json "$scratch/pingpong.json"
run 0 "$bench" put --ranks 2 --iters 1 --bytes 8,4096 --json "$scratch/put.json"

run 0 "$bench" ll --ranks 2 --experts 4 --topk 4 --tokens 1,8 --hidden 64 --iters 1 --hook --json "$scratch/ll.json"
ll_rows=$(grep -cE '^ +[0-9]' "$scratch/out")
run 0 "$bench" ep --ranks 2 --experts 4 --topk 2 --tokens 8 --hidden 64 --iters 1 --json "$scratch/ep.json"
rows=$(grep -cE '^ +[0-9]' "$scratch/out")
if have python3; then
    python3 - "$scratch" "$rows" "$ll_rows" > "$scratch/errors" 2>&1 <<'END'
import json, sys
num_rows = {"ep": int(sys.argv[2]), "ll": int(sys.argv[3]), "put": 2, "pingpong": 4}
# Every token goes to all 4 experts on 2 ranks: a row of 64 bytes with a scale, and on the wire a header of 64 and
# 16 bytes for the scale; two rows of 64 channels home from the other rank.
moved = {"dispatch": (64 + 64 + 16, 4 * (64 + 4)), "combine": (2 * 128, 4 * 128)}
for kind in ("ep", "ll", "wire", "put", "pingpong"):
    path = sys.argv[1] + "/" + kind + ".json"
    report = json.load(open(path))
    if report["format"] != 1 or report["kind"] != kind or not report["notes"]["tern"]:
        print(path, "format", report["format"], "kind", report["kind"])
    for row in report["rows"]:
        if set(row) != set(report["units"]):
            print(path, "columns of", row)
    if len(report["rows"]) != num_rows.get(kind, len(report["rows"])):
        print(path, len(report["rows"]), "rows, the table has", num_rows[kind])
    for row in report["rows"] if kind in ("put", "pingpong") else []:
        moved = row["bytes"] * (row["ops"] if kind == "put" else 1)
        if abs(row["rate"] - moved / row["p50"] / 1e3) > 1e-4 * row["rate"]:
            print(path, "rate of", row)
        if abs(row["wire"] - 100 * row["rate"] / row["limit"]) > 1e-4 * row["wire"]:
            print(path, "share of", row)
        if kind == "pingpong" and abs(row["over"] - (row["p50"] - row["flag"])) > 1e-4 * row["p50"] + 1e-4 * row["flag"]:
            print(path, "over of", row)
        if (row["ranks"], row["scope"], row["transport"]) != (2, "thread" if row["op"] == "put inline" else "warp", "p2p"):
            print(path, "settings of", row)
    for row in report["rows"] if kind == "ll" else []:
        if (row["cast"], row["weights"], row["experts"], row["hook"], row["lanes"]) != ("fp8", "combine", 4, 1, 1):
            print(path, "settings of", row)
        if not row["p10"] <= row["p50"] <= row["p90"]:
            print(path, "order of", row)
        for name, bytes in zip(("remote", "logical"), moved.get(row["op"], ())):
            if abs(row[name] - row["tokens"] * bytes / 1e3) > 1e-6:
                print(path, name, "bytes of", row)
END
    check "the JSON is what the table says" "$scratch/errors"
else
    skip "the JSON is what the table says: there is no python3"
fi
if grep -q '"format": 1' "$scratch/ep.json" && [ "$(grep -c '{"tokens": ' "$scratch/ep.json")" = "$rows" ]; then
    ok "the JSON has the format number and a line a row"
else
    not_ok "the JSON has the format number and a line a row"
fi

# refused VALUE ARGUMENT...: exit status 2 and the value in the sentence
refused()
{
    value=$1
    shift
    if run 2 "$bench" "$@" && grep -qF -- "$value" "$scratch/err"; then
        ok "refused: $*"
    else
        sed 's/^/# /' "$scratch/err"
        not_ok "refused: $* (the sentence should hold: $value)"
    fi
}
refused "'fast'" fast
refused "--bogus" ll --bogus 1
refused "'1' is no option" ll --hook 1
refused "--hook" ep --hook
refused "--lanes 65: 65 is outside" ll --lanes 65
refused "--cast fp4" ll --cast fp4
refused "--weights never" ll --weights never
refused "--layout rank needs --weights dispatch" ll --layout rank --weights combine
refused "--compression log8" ll --compression log8
refused "--mask 4: ranks are 0 to 3" ll --ranks 4 --mask 4
refused "--mask 0: the only rank" ll --ranks 1 --mask 0
refused "--hidden 24 is not a multiple of 16, with --cast fp8" ll --ranks 2 --hidden 24
refused "--tokens 9000: 9000 is outside" ll --tokens 9000
refused "--topk 33: 33 is outside 1 to 32" ll --ranks 2 --topk 33
refused "--experts 10" ll --ranks 4 --experts 10
refused "--transport tcp: not one of p2p" put --transport tcp
refused "--scope grid: not one of thread|warp|block" get --scope grid
refused "--bytes 0: 0 is outside 1 to 4194304" put --bytes 0
refused "--bytes 65536: a peer has room for 57344 here" put --ranks 2 --bytes 65536
refused "--transfer bulk needs --scope warp or block" put --transfer bulk --scope thread
refused "--warps 2 needs --scope block" pingpong --ranks 2 --warps 2
refused "--warps 17: 17 is outside 1 to 16" put --warps 17
refused "--queues 65: 65 is outside 1 to 64" put --queues 65
refused "--queues" signal --queues 2
refused "--scope" atomic --scope warp
refused "--bytes" barrier --bytes 8
refused "--ranks 1: a latency is between two" atomic --ranks 1
refused "--corrupt flip with --check 0" barrier --corrupt flip --check 0
refused "--corrupt dispatch" put --corrupt dispatch
refused "no/such/x.json" signal --json no/such/x.json
refused "--corrupt combine" ll --corrupt combine --check 0
refused "no/such/x.json" ll --json no/such/x.json
refused "--bogus" ep --bogus 1
refused "--data" ep --data x
refused "--iters needs a value" ep --iters
refused "--ranks 0" ep --ranks 0
refused "--ranks 129" ep --ranks 129
refused "--tokens 12x" ep --tokens 12x
refused "--tokens 1,,2: '' is not a whole number" ep --tokens 1,,2
refused "--tokens 16,: '' is not a whole number" ep --tokens 16,
refused "--tokens 1,9999999: 9999999 is outside" ep --tokens 1,9999999
refused "'stray' is no option" ep stray
refused "'extra' is no option" ep --tokens 8 extra
refused "--align 8 needs --layout expert" ep --align 8
refused "--combine engine needs --layout rank" ep --combine engine --layout expert
refused "--layer 1 without a routing file" ep --layer 1
refused "--skew 99: 99 is outside" ep --skew 99
refused "--skew 130: the ids come from" ep --routing $ids --skew 130
refused "per cent of the mean; 8 of 8 experts a token on 4 ranks allow at most about 100" ep --ranks 4 --tokens 8 \
    --topk 8 --experts 8 --skew 500
refused "--seed 99999999999999999999" ep --seed 99999999999999999999
refused "--dtype fp4" ep --dtype fp4
refused "--experts 10" ep --ranks 4 --experts 10
refused "--topk 9" ep --ranks 2 --experts 8 --topk 9
refused "--hidden 12" ep --hidden 12
refused "--experts 128" ep --routing $ids --experts 128
refused "--experts 288" ep --routing $ids --experts 288
refused "--topk 4" ep --routing $ids --topk 4
refused "--layer 2" ep --routing $ids --layer 2
refused "32776" ep --routing $ids --ranks 8 --tokens 4097
refused "no/such.npy" ep --routing no/such.npy
refused "float16" ep --routing data/routing_topk_weights.npy
refused "uint8" ep --routing $ids --weights $ids
for command in ep ll demo put get; do
    refused "--sms 1000: a rank may use" $command --ranks 4 --sms 1000
    [ -s "$scratch/out" ] && not_ok "$command measures before it refuses --sms 1000" || ok "and nothing was measured"
done
refused "--corrupt dispatch" ep --corrupt dispatch --check 0
refused "no/such" demo --data no/such
refused "--data DIR" demo --data no/such
refused "--experts 16385" ep --experts 16385
refused "--iters 1001" wire --iters 1001
refused "--hidden 1048576" ep --ranks 2 --tokens 8 --hidden 1048576
# What the library alone knows is refused in its words.
refused "128 ranks x 1048576 tokens x 64 choices" ep --ranks 128 --tokens 1048576 --topk 64 --experts 128
refused "no/such/x.json" ep --json no/such/x.json

# answers WORD ARGUMENT...: exit status 0, and WORD in what is printed
answers()
{
    word=$1
    shift
    if run 0 "$bench" "$@" && grep -qF -- "$word" "$scratch/out"; then
        ok "tern-bench $* answers"
    else
        not_ok "tern-bench $* answers (expected: $word)"
    fi
}
answers "default 50, cpu 5" ep --help
answers "default 10, cpu 3" wire --help
answers "default 288" ll --hook --help
answers "default 20, cpu 2" demo --help
answers "default 8 to 4194304" put --help
answers "what carries operations: loads and stores; default p2p" barrier --help
answers "tern-bench pingpong" help
answers "--data" help
answers "the copy engine; default pull" ep --help
answers "three kinds of scales; default fp8" ll --help
answers "a (token, rank) once; default 100" ll --help
for command in "" ep ll wire demo put get atomic signal pingpong barrier; do
    answers "tern-bench $(sed -n 's/^#define TERN_VERSION_[MP][A-Z]* *//p' include/tern/tern.h | paste -sd.)" $command --version
done

# invalid VARIABLE VALUE: tern-info says so
invalid()
{
    if run 1 env "$1=$2" "$build/bin/tern-info" && grep -qF "$1=$2" "$scratch/err"; then
        ok "tern-info refuses $1=$2"
    else
        not_ok "tern-info refuses $1=$2"
    fi
}
invalid TERN_TIMEOUT_MS abc
invalid TERN_TIMEOUT_MS 0
invalid TERN_MACHINE gpu
if run 1 env TERN_NICS=mlx5_99 "$build/bin/tern-info" && grep -qF '"mlx5_99"' "$scratch/err"; then
    ok "tern-info refuses a NIC that is not here"
else
    not_ok "tern-info refuses a NIC that is not here"
fi
finish
