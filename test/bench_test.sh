#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tern-bench on the cpu machine: what it measures is right (#wrong is 0 in every row), a planted error is seen and
# decides the exit status, the JSON is JSON and says the same as the table, and options that make no sense are
# refused with the option and the value in the sentence. One file, because it goes by the program's commands, each of
# which is held to the same questions.
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

# missing TRANSPORT: the build lacks what it takes, says tern-bench, and so a skip by name
missing()
{
    "$bench" put --ranks 2 --iters 1 --bytes 8 --transport "$1" > "$scratch/carried" 2>&1
    case $(cat "$scratch/carried") in
    *"built without libfabric"* | *"has no rdma-core"*) skip "transport $1: $(tail -n 1 "$scratch/carried")" ;;
    *) return 1 ;;
    esac
}

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
right ep "combine that pushes" --combine push
right ep "dispatch that drains" --drain 1 --out tensor
right ep "dispatch that drains fp8 rows, combine that pushes" --drain 1 --out tensor --dtype fp8 --combine push
right ep "fp8 rows with scales" --dtype fp8
right ep "cast to fp8, by expert" --dtype cast --layout expert
right ep "outputs outside the window" --out tensor
right ep "rows alone" --meta 0
right ep "loads and stores" --transfer plain --dtype fp8
right ep "one rank" --ranks 1
export TERN_DOMAIN_SIZE=2
right ep "two domains" --layout expert
right ll "two domains that are found" --transport proxy-tcp
if grep -q '^# domains  *of 2 ranks, between them proxy-tcp' "$scratch/out" && grep -q '^#tokens.* network ' "$scratch/out"; then
    ok "ll says which domains it has found, and what crosses"
else
    not_ok "ll says which domains it has found, and what crosses"
fi
unset TERN_DOMAIN_SIZE

for transport in p2p softnic mock-mlx5 proxy-tcp; do
    missing $transport || right ep "two domains by $transport" --domain-size 2 --transport $transport --iters 1
done
right ep "domains of one rank, by expert, fp8, three queues" --domain-size 1 --layout expert --dtype fp8 --queues 3 --iters 1
if grep -q '^# transport *auto, 3 queues' "$scratch/out" && grep -q ' network  *floor ' "$scratch/out"; then
    ok "ep says what carried, and shows the network"
else
    not_ok "ep says what carried, and shows the network"
fi

right ll "defaults"
right ll "several numbers of tokens, one of them 0" --tokens 0,1,7
right ll "in two phases" --hook
right ll "in two phases, three batches in flight" --hook --lanes 3 --tokens 5
right ll "replayed graphs" --graph
right ll "replayed graphs, two phases, two lanes" --graph --hook --lanes 2 --tokens 5
right ll "weights at dispatch, BF16" --weights dispatch --cast none
right ll "weights ahead of combines" --weights ahead --tokens 0,1,7
right ll "weights ahead of combines, in two phases, three batches in flight" --weights ahead --hook --lanes 3
right ll "weights ahead of combines, replayed graphs, compressed" --weights ahead --graph --compression fp8
right ll "scales as exponents" --cast ue8m0 --weights dispatch --hidden 640
right ll "scales rounded up" --cast pow2
right ll "combine compressed to 10-bit logarithms" --compression log10
right ll "sums compressed to FP8" --compression fp8 --weights dispatch --hidden 640
right ll "loads and stores, slabs and counts alone" --transfer plain --meta 0
right ll "by rank, with weights at dispatch unless asked" --layout rank --tokens 0,1,9
if grep -q 'weights dispatch, by rank' "$scratch/out" && ! grep -q waited "$scratch/out"; then
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
right ll "two domains, between them stores" --domain-size 2
right ll "domains of one rank, by the proxy, in two phases" --domain-size 1 --transport proxy-tcp --hook
missing mock-mlx5 || right ll "two domains, by the mock of mlx5, rank 1 masked" --domain-size 2 --transport mock-mlx5 --mask 1
right ll "two domains, railed" --domain-size 2 --rail
right ll "two domains, by three queues" --domain-size 2 --queues 3 --transport softnic
if grep -q '^# queues *3 to each rank' "$scratch/out"; then ok "and says so"; else not_ok "and says so"; fi
right ll "two domains, railed, sums in two phases, by software NICs" --domain-size 2 --rail --weights dispatch --hook --transport softnic
right ll "domains of one rank, railed, by rank, in a graph" --domain-size 1 --rail --layout rank --graph --compression log10
right ll "two domains, by modelled NICs" --domain-size 2 --transport softnic --nic-gbps 1 --nic-latency-us 300
# At 1 Gb/s a kilobyte takes 8 us; the pair takes two trips.
if awk '/^#tokens/ { for (i = 1; i <= NF; i++) { f = $i == "floor" ? i : f; k = $i == "network" ? i : k } }
    / (dispatch|combine) / && k && $k > 0 && $f > 299 + 8 * $k && $f < 301 + 8 * $k { n++ }
    / pair / && k && $f > 599 + 8 * $k && $f < 601 + 8 * $k { n++ } END { exit n != 3 }' "$scratch/out"; then
    ok "the floor of a modelled network is its rate's and its latency's"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "the floor of a modelled network is its rate's and its latency's"
fi

right ll "domains of one rank, by NICs that have only a latency" --domain-size 1 --transport softnic --nic-latency-us 3000
if awk '/^#tokens/ { for (i = 1; i <= NF; i++) f = $i == "floor" ? i : f }
    / (dispatch|combine) / && f && $f >= 3000 { n++ } / pair / && f && $f >= 6000 { n++ } END { exit n != 3 }' "$scratch/out"; then
    ok "the floor has a latency without a rate, too"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "the floor has a latency without a rate, too"
fi

# packets WHAT: what the note says became of so many packets
packets() { sed -n "s/^# packets .* \([0-9]*\) $1.*/\1/p" "$scratch/out"; }

# The faults that are asked for are there, and no others; the same words in the JSON.
for command in ep ll; do
    right $command "by packets that are lost, late and reordered" --domain-size 2 --transport softnic \
        --nic-faults drop=0.05,delay=300,reorder=0.5,seed=3 --json "$scratch/faults.json"
    if [ "$(packets lost)" -gt 0 ] && [ "$(packets delayed)" -gt 0 ] && [ "$(packets reordered)" -gt 0 ] &&
        [ "$(packets times)" -gt 0 ] && [ "$(packets doubled)" -eq 0 ] && [ "$(packets sent)" -gt "$(packets lost)" ] &&
        grep -qF "\"packets\": \"$(sed -n 's/^# packets *//p' "$scratch/out")\"" "$scratch/faults.json"; then
        ok "$command says what became of packets"
    else
        sed 's/^/# /' "$scratch/out"
        not_ok "$command says what became of packets"
    fi
done
right ll "by packets and adaptive routing, but none is lost" --domain-size 2 --transport softnic --nic-faults adaptive:5,drop=0
if [ "$(packets lost)" -eq 0 ] && [ "$(packets doubled)" -gt 0 ] && [ "$(packets reordered)" -gt 0 ]; then
    ok "a fault that is named takes the place of the network's own"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "a fault that is named takes the place of the network's own"
fi

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
# There may be experts whom nobody was sent to: a file's largest id says no more than how many there are at least.
for command in ep ll; do
    if run 0 "$bench" $command --ranks 4 --tokens 32 --hidden 128 --iters 1 --routing $ids --experts 288 --json "$scratch/more.json" &&
        [ "$(sum_wrong)" = 0 ] && grep -q '^# routing .*\<288 experts' "$scratch/out" && grep -q '"experts": 288,' "$scratch/more.json"; then
        ok "$command takes more experts than a file names"
    else
        not_ok "$command takes more experts than a file names"
    fi
done

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
    [ "$(grep -cE '^ +(store|load|push|pull|engine|local|flag) ' "$scratch/out")" -ge 10 ] &&
    [ "$(grep -cE '^ +flag( bare)? +- ' "$scratch/out")" -eq 2 ]; then
    ok "wire measures every mover and moves right"
else
    not_ok "wire measures every mover and moves right"
fi
for ranks in 1 3; do # the copies of the machine, too, and at every number of processors
    if run 1 "$bench" wire --ranks $ranks --iters 1 --corrupt flip &&
        awk '/^ / && $1 != "flag" && /[0-9]$/ { rows++; bad += $NF != 1 } / - *$/ && $1 != "flag" { bad++ }
            END { exit rows < 8 || bad }' "$scratch/out"; then
        ok "wire: a flipped bit is seen in every row, $ranks ranks"
    else
        sed 's/^/# /' "$scratch/out"
        not_ok "wire: a flipped bit is seen in every row, $ranks ranks"
    fi
done
# So it is in the wire that others measure for their figures to stand beside.
for command in "ep --tokens 8 --hidden 64" "ll --tokens 8 --hidden 64" demo; do
    if run 2 "$bench" $command --iters 1 --corrupt wire && grep -q 'the wire, .* moved 1 of [1-9][0-9]* bytes wrong' "$scratch/err"; then
        ok "${command%% *}: a flipped bit of the wire is seen"
    else
        sed 's/^/# /' "$scratch/err"
        not_ok "${command%% *}: a flipped bit of the wire is seen"
    fi
done

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

# Each transport carries every kind of operation, small. Where the library of one is missing, the sentence says so.
carried()
{
    missing "$1" && return
    driven 2 "by $1" put --ranks 3 --iters 1 --bytes 8,4096 --queues 2 --transport "$1"
    driven 2 "by $1" get --ranks 3 --iters 1 --bytes 8,4096 --queues 2 --transport "$1"
    driven 3 "by $1" pingpong --ranks 2 --iters 1 --bytes 1001 --transport "$1"
    driven 4 "by $1" signal --ranks 2 --iters 1 --transport "$1"
    driven 26 "by $1" atomic --ranks 2 --iters 1 --transport "$1"
    driven 1 "by $1" barrier --ranks 3 --iters 1 --transport "$1"
}
for transport in softnic mock-mlx5 proxy-tcp proxy-libfabric; do
    carried $transport
done
# Of a row that may take no time a sample has few operations: a trial of some, not 262144.
for command in "put --bytes 8" "signal"; do
    set -- $command
    driven $([ $1 = put ] && echo 1 || echo 4) "cut short" "$@" --ranks 2 --iters 1 --row-ms 1 --transport proxy-tcp
    if awk -v most=1000 '/^#/ { for (i = 2; i <= NF; i++) at = $i == "ops" ? NF - i : at }
            /^ .* 0$/ { seen += $(NF - at) < most } END { exit seen == 0 }' "$scratch/out"; then
        ok "and $1 has fewer operations a sample"
    else
        sed 's/^/# /' "$scratch/out"
        not_ok "and $1 has fewer operations a sample"
    fi
done
# Ranks that do not address each other have operations, but no wire beside them.
export TERN_DOMAIN_SIZE=1
for command in "1 put --bytes 8" "1 get --bytes 8" "3 pingpong --bytes 1001" "4 signal" "26 atomic" "1 barrier"; do
    set -- $command
    rows=$1
    shift
    driven "$rows" "across domains" "$@" --ranks 2 --iters 1 --transport proxy-tcp --json "$scratch/far_$1.json"
done
unset TERN_DOMAIN_SIZE
driven 1 "by a modelled wire" put --ranks 2 --iters 1 --bytes 4096 --transport softnic --nic-gbps 1 --nic-latency-us 20
driven 1 "by a modelled rate of messages" put --ranks 2 --iters 1 --bytes 8 --transport softnic --nic-mops 1 --json "$scratch/mops.json"
if grep -q '^# model .* and 1 million messages a second' "$scratch/out" && grep -q '"model": ".* and 1 million messages' "$scratch/mops.json"; then
    ok "the rate of messages is in the note and in the JSON"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "the rate of messages is in the note and in the JSON"
fi
driven 16 "two ranks, two queues" nic --ranks 2 --queues 2 --iters 1 --nic-gbps 2 --nic-latency-us 50 --bytes 512,8192 --json "$scratch/nic.json"
driven 14 "three ranks, one size" nic --ranks 3 --iters 1 --queues 3 --bytes 4096
# Whatever the machine is busy with, a NIC is not faster than its model. (Of incast each sender times itself, and one
# that begins late on a busy machine has the link alone; softnic_incast_test has it in the model's time.)
if awk '/^ / && $1 != "incast" && $NF == 0 { rows += $10 != "-"; bad += $10 != "-" && $10 > 100.5; bad += $13 > 0 && $5 < $13 } END { exit rows == 0 || bad }' \
    "$scratch/out"; then
    ok "nic: no rate above, no trip below the model"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "nic: no rate above, no trip below the model"
fi
# A put of 8 bytes counts for a message, and 1 million of them a second are 0.008 GB/s, however fast the wire.
driven 14 "a rate of messages" nic --ranks 2 --iters 1 --queues 2 --bytes 4096 --nic-gbps 400 --nic-mops 1 --json "$scratch/nic_mops.json"
if awk '/^ +put inline / && $10 != "-" { rows++; bad += $10 != "0.008" || $11 > 100.5 } END { exit rows != 1 || bad }' "$scratch/out" &&
    grep -q '"model": "400 Gb/s a direction, 1 million messages a second' "$scratch/nic_mops.json"; then
    ok "nic: no more messages than the model's, which the note and the JSON name"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "nic: no more messages than the model's, which the note and the JSON name"
fi
if run 0 "$build/bin/tern-run" -n 2 "$bench" nic --iters 1 --queues 2 --bytes 4096 && [ "$(sum_wrong)" = 0 ] &&
    [ "$(grep -cE '^ +put  ' "$scratch/out")" = 5 ]; then
    ok "nic under tern-run"
else
    not_ok "nic under tern-run"
fi
if run 0 "$build/bin/tern-run" -n 3 "$bench" put --iters 1 --bytes 64,4096 && [ "$(sum_wrong)" = 0 ] &&
    [ "$(grep -cE '^ +put ' "$scratch/out")" = 2 ] &&
    run 0 "$build/bin/tern-run" -n 3 "$bench" atomic --iters 1 && [ "$(sum_wrong)" = 0 ] &&
    run 0 "$build/bin/tern-run" -n 3 "$bench" barrier --iters 1 && [ "$(sum_wrong)" = 0 ]; then
    ok "put, atomic and barrier under tern-run"
else
    not_ok "put, atomic and barrier under tern-run"
fi
# Of a put with signal there are two checks, of what was seen and of what was moved: each sees a bit of its own.
for planted in "put 2 --bytes 1,4096" "get 1 --bytes 64 --transfer bulk" "atomic 26" "signal 4" "pingpong 4 --bytes 100" "barrier 1" \
    "nic 14 --queues 2 --bytes 512"; do
    set -- $planted
    command=$1 wrong=$2
    shift 2
    if run 1 "$bench" "$command" --ranks 2 --iters 1 --corrupt flip "$@" && [ "$(sum_wrong)" = "$wrong" ]; then
        ok "$command: a flipped bit in each check is seen"
    else
        not_ok "$command: a flipped bit in each check is seen (#wrong $(sum_wrong), expected $wrong)"
    fi
done
# Names of files may be any bytes, and longer than there is room for: two of letters of two bytes, one of what is none.
letters=$(printf '%110s' | sed "s/ /$(printf '\303\251')/g")
broken=$(printf '\377\300\257\355\240\200\364\220\200\200\360\237\230\200')
number=0
for name in "$letters" "x$letters" "$broken"; do
    number=$((number + 1))
    ln -s "$PWD/$ids" "$scratch/$name.npy" &&
        run 0 "$bench" ep --ranks 2 --tokens 2 --hidden 64 --iters 1 --routing "$scratch/$name.npy" --layer 1 --json "$scratch/name$number.json"
done
run 0 "$bench" pingpong --ranks 2 --iters 1 --bytes 8,4096 --json "$scratch/pingpong.json"
run 0 "$bench" put --ranks 2 --iters 1 --bytes 8,4096 --json "$scratch/put.json"
run 0 "$bench" signal --ranks 2 --iters 1 --json "$scratch/signal.json"
run 0 "$bench" barrier --ranks 2 --iters 1 --json "$scratch/barrier.json"

run 0 "$bench" ll --ranks 2 --experts 4 --topk 4 --tokens 1,8 --hidden 64 --iters 1 --hook --json "$scratch/ll.json"
ll_rows=$(grep -cE '^ +[0-9]' "$scratch/out")
run 0 "$bench" ep --ranks 4 --experts 4 --topk 4 --tokens 8 --hidden 64 --iters 1 --domain-size 2 --transport softnic \
    --nic-gbps 2 --nic-latency-us 50 --json "$scratch/domains.json"
run 0 "$bench" ll --ranks 4 --experts 4 --topk 4 --tokens 8 --hidden 64 --iters 1 --domain-size 2 --rail --weights dispatch \
    --transport softnic --nic-gbps 2 --nic-latency-us 50 --json "$scratch/rails.json"
run 0 "$bench" ep --ranks 2 --experts 4 --topk 2 --tokens 8 --hidden 64 --iters 1 --json "$scratch/ep.json"
rows=$(grep -cE '^ +[0-9]' "$scratch/out")
if have python3; then
    python3 - "$scratch" "$rows" "$ll_rows" > "$scratch/errors" 2>&1 <<'END'
import json, sys
num_rows = {"ep": int(sys.argv[2]), "ll": int(sys.argv[3]), "put": 2, "pingpong": 4, "nic": 16}
# Every token goes to all 4 experts on 2 ranks: a row of 64 bytes with a scale, and on the wire a header of 64 and
# 16 bytes for the scale; two rows of 64 channels home from the other rank.
moved = {"dispatch": (64 + 64 + 16, 4 * (64 + 4)), "combine": (2 * 128, 4 * 128)}
# Every token of 4 ranks in 2 domains goes to all experts: once to the other domain, of 4 rows. A row is 128 bytes, 2
# Gb/s are 250 bytes a microsecond.
for row in json.load(open(sys.argv[1] + "/domains.json"))["rows"]:
    if row["op"] in ("dispatch", "combine"):
        seen = (row["network-bytes"], row["logical-bytes"], round(row["floor"], 3), row["domains"])
        if seen != (8 * 128, 8 * 4 * 128, 54.096, 2):
            print("crossing of", row)
        for name, part in (("network", row["network-bytes"]), ("logical", row["logical-bytes"])):
            if abs(row[name] - part / row["p50"] / 1e3) > 1e-3 * row[name]:
                print(name, "of", row)
        if abs(row["of-floor"] - 100 * row["floor"] / row["p50"]) > 1e-3 * row["of-floor"] or row["of-floor"] > 100:
            print("share of the floor of", row)
# Likewise, railed: one row to the other domain, with 16 bytes for the slots there, one to the rank beside, and
# one that the other domain sent goes on; and the same back, of 128 bytes.
for row in json.load(open(sys.argv[1] + "/rails.json"))["rows"]:
    wanted = {"dispatch": (8 * 160, 8 * (144 + 160 + 144), 55.12), "combine": (8 * 128, 8 * 3 * 128, 54.096)}
    if row["op"] in wanted:
        seen = (round(1e3 * row["network"]), round(1e3 * row["remote"]), round(row["floor"], 3))
        if seen[:2] != wanted[row["op"]][:2] or seen[2] < wanted[row["op"]][2] or row["rail"] != 1:
            print("railed crossing of", row)
# Text is UTF-8, cut between letters, and of the end of a path only. Of what is no letter each byte has a sign.
for number, routing, end in ((1, "\u00e9\u00e9\u00e9.1", "\u00e9"), (2, "x\u00e9\u00e9\u00e9.1", "\u00e9"),
                             (3, 6 * "\ufffd" + ".1", "/" + 10 * "\ufffd" + "\U0001f600.npy")):
    report = json.load(open("%s/name%d.json" % (sys.argv[1], number), encoding="utf-8"))
    note = report["notes"]["routing"]
    if not note.startswith("256 experts, layer 1, seed 1, skew 100, /") or not note.endswith(end):
        print("note of", ascii(note))
    if report["rows"][0]["routing"] != routing:
        print("name of", ascii(report["rows"][0]["routing"]))
# Of what was not measured, or is nobody's choice, there is no number.
for kind, nothing in (("signal", ("limit", "wire", "queues")), ("barrier", ("bytes", "rate", "limit", "wire", "queues")),
                      ("pingpong", ("queues",)), ("put", ("bare", "flag", "over")),
                      *(("far_" + far, ("limit", "wire", "bare", "flag", "over"))
                        for far in ("put", "get", "pingpong", "signal", "atomic", "barrier"))):
    for row in json.load(open(sys.argv[1] + "/" + kind + ".json"))["rows"]:
        if any(row[name] is not None for name in nothing) or not row["p50"] > 0:
            print(kind, "has numbers of nothing:", row)
for kind in ("ep", "ll", "wire", "put", "pingpong", "nic"):
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
        flag = row["bare" if row["op"] == "put inline" else "flag"] # what is ordered, and what is not
        if kind == "pingpong" and abs(row["over"] - (row["p50"] - flag)) > 1e-4 * row["p50"] + 1e-4 * flag:
            print(path, "over of", row)
        if (row["ranks"], row["scope"], row["transport"]) != (2, "thread" if row["op"] == "put inline" else "warp", "p2p"):
            print(path, "settings of", row)
    for row in report["rows"] if kind == "nic" else []:
        if row["model"] is not None and abs(row["share"] - 100 * row["rate"] / row["model"]) > 1e-3 * row["share"]:
            print(path, "share of", row)
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
refused "--layout rank needs --weights dispatch, not ahead" ll --layout rank --weights ahead
refused "--weights ahead with --mask 1" ll --ranks 4 --weights ahead --mask 1
refused "--weights ahead with --domain-size 2" ll --ranks 4 --weights ahead --domain-size 2
refused "--compression log8" ll --compression log8
refused "--queues 3 lead to other domains" ll --queues 3
refused "--mask 4: ranks are 0 to 3" ll --ranks 4 --mask 4
refused "--mask 0: the only rank" ll --ranks 1 --mask 0
refused "--hidden 24 is not a multiple of 16, with --cast fp8" ll --ranks 2 --hidden 24
refused "--tokens 9000: 9000 is outside" ll --tokens 9000
refused "--topk 33: 33 is outside 1 to 32" ll --ranks 2 --topk 33
refused "--experts 10" ll --ranks 4 --experts 10
refused "--transport softnic carries rows between domains" ll --ranks 4 --transport softnic
refused "give --domain-size, less than 4" ll --ranks 4 --domain-size 4 --transport softnic
refused "--queues 3 lead to other domains, and the 4 ranks are one" ll --ranks 4 --domain-size 4 --queues 3
refused "--rail needs --domain-size" ll --ranks 4 --rail
refused "--rail with --domain-size 4: 4 ranks are one domain" ll --ranks 4 --domain-size 4 --rail
refused "--rail with --mask 1" ll --ranks 4 --domain-size 2 --rail --mask 1
refused "domain_ranks is 3" ll --ranks 4 --domain-size 3
refused "need --transport softnic" put --ranks 2 --nic-gbps 5
refused "need --transport softnic" put --ranks 2 --nic-mops 5
refused "--nic-mops 1001: 1001 is outside 1 to 1000" nic --nic-mops 1001
refused "--transport tcp: not one of p2p|softnic|mock-mlx5|proxy-tcp|proxy-libfabric" put --transport tcp
refused "--scope grid: not one of thread|warp|block" get --scope grid
refused "--bytes 0: 0 is outside 1 to 4194304" put --bytes 0
refused "--bytes 65536: a peer has room for 57344 here" put --ranks 2 --bytes 65536
refused "--transfer bulk needs --scope warp or block" put --transfer bulk --scope thread
refused "--warps 2 needs --scope block" pingpong --ranks 2 --warps 2
refused "--warps 17: 17 is outside 1 to 16" put --warps 17
refused "--queues 65: 65 is outside 1 to 64" put --queues 65
refused "--queues" signal --queues 2
refused "--nic-gbps 0: 0 is outside" nic --nic-gbps 0
refused "--ranks 1: a put is from one" nic --ranks 1
refused "--bytes 131072: a peer has room for 65536 here" nic --bytes 131072
refused "--queues 65: 65 is outside 1 to 64" nic --queues 65
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
refused "--domain-size 3" ep --ranks 4 --domain-size 3
refused "--domain-size 8" ep --ranks 4 --domain-size 8
refused "--domain-size 129: 129 is outside" ep --domain-size 129
refused "--transport softnic carries rows between domains" ep --ranks 2 --transport softnic
refused "--queues 16 lead to other domains" ep --ranks 2 --queues 16
refused "--queues 16 lead to other domains" ep --ranks 2 --domain-size 2 --queues 16
refused "need --transport softnic" ep --ranks 2 --domain-size 1 --nic-gbps 5
for command in ep ll put; do
    domains="--domain-size 1"
    [ $command = put ] && domains=
    refused "need --transport softnic" $command --ranks 2 $domains --nic-latency-us 5
    [ -s "$scratch/out" ] && not_ok "$command measures before it refuses --nic-latency-us 5" || ok "and nothing was measured"
done
far="ll --ranks 4 --domain-size 2 --transport softnic"
refused "--nic-faults lose=0.1: 'lose=0.1' is none of packets and adaptive, first, and drop=P" $far --nic-faults lose=0.1
refused "'adaptive' is none of" $far --nic-faults drop=0,adaptive
refused "'' is none of" $far --nic-faults drop=0,,seed=1
refused "drop is 0.6, which is outside 0 to 0.5" $far --nic-faults drop=0.6
refused "'-0.1' of double is not a number of 0 to 0.5" $far --nic-faults double=-0.1
refused "'0.1.1' of reorder is not a number of 0 to 1" $far --nic-faults reorder=0.1.1
refused "'1.5' of delay is not a whole number of 0 to 10000" $far --nic-faults delay=1.5
refused "seed is 4294967296, which is outside 0 to 4294967295" $far --nic-faults adaptive:4294967296
refused "'' of seed is not a whole number" $far --nic-faults packets:
refused "--nic-faults drop=0 needs --transport softnic" ep --ranks 4 --domain-size 2 --nic-faults drop=0
refused "with a wire of 0 Gb/s, 0 us and 3 million messages a second: NICs that speak packets" \
    ep --ranks 4 --domain-size 2 --transport softnic --nic-faults drop=0 --nic-mops 3
refused "with a wire of 2 Gb/s, 0 us and 0 million messages a second: NICs that speak packets have no modelled time" \
    ep --ranks 4 --domain-size 2 --transport softnic --nic-faults drop=0 --nic-gbps 2
refused "--combine engine needs --layout rank" ep --combine engine --layout expert
refused "--drain 1 needs --layout rank" ep --drain 1 --layout expert
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
refused "--experts 252: the ids in $ids are those of 256 experts or more" ep --ranks 4 --routing $ids --experts 252
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
refused "--corrupt wire with --check 0" ll --corrupt wire --check 0
export TERN_DOMAIN_SIZE=2
refused "--corrupt wire: several domains have none" ep --ranks 4 --corrupt wire
for command in wire nic; do
    refused "$command is for ranks that address each other; the 4 here are in domains of 2" $command --ranks 4
    [ -s "$scratch/out" ] && not_ok "$command measures before it refuses domains" || ok "and nothing was measured"
done
unset TERN_DOMAIN_SIZE
refused "no/such" demo --data no/such
refused "--data DIR" demo --data no/such
refused "--experts 16385" ep --experts 16385
refused "--iters 1001" wire --iters 1001
refused "--hidden 1048576" ep --ranks 2 --tokens 8 --hidden 1048576
for command in ep wire put; do
    if run 2 env TERN_MACHINE=gpu "$bench" $command --ranks 2 && grep -q 'TERN_MACHINE=gpu is none of auto, cpu, cuda' "$scratch/err"; then
        ok "refused: TERN_MACHINE=gpu, by $command"
    else
        not_ok "refused: TERN_MACHINE=gpu, by $command"
    fi
done
# What the library alone knows is refused in its words.
refused "128 ranks x 1048576 tokens x 64 choices" ep --ranks 128 --tokens 1048576 --topk 64 --experts 128
refused "no/such/x.json" ep --json no/such/x.json

# A pipe that nobody reads is refused, not waited for; one with a reader has it all.
if have mkfifo; then
    mkfifo "$scratch/pipe"
    if timeout -s KILL 20 "$bench" signal --ranks 2 --iters 1 --json "$scratch/pipe" > "$scratch/out" 2> "$scratch/err"; [ $? -eq 2 ] &&
        grep -q -- '--json: cannot write .*/pipe' "$scratch/err" && [ ! -s "$scratch/out" ]; then
        ok "refused: --json to a pipe that nobody reads"
    else
        not_ok "refused: --json to a pipe that nobody reads"
    fi
    exec 3<> "$scratch/pipe" # it has a reader from now on, whenever the next one has come so far
    timeout 60 cat "$scratch/pipe" > "$scratch/read.json" 3>&- &
    reader=$!
    run 0 timeout -s KILL 20 "$bench" signal --ranks 2 --iters 1 --json "$scratch/pipe"
    status=$?
    exec 3>&-
    if [ $status -eq 0 ] && wait $reader &&
        tail -n 1 "$scratch/read.json" | grep -q '^}$'; then
        ok "a pipe with a reader has the whole JSON"
    else
        not_ok "a pipe with a reader has the whole JSON"
    fi
else
    skip "--json to a pipe: there is no mkfifo"
fi

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
answers "other domains are reached by the transport" ep --help
answers "default 10, cpu 3" wire --help
answers "default 288" ll --hook --help
answers "default 20, cpu 2" demo --help
answers "default 8 to 4194304" put --help
answers "most that all samples of a row take" pingpong --help
answers "what carries operations: loads and stores; queue pairs" barrier --help
answers "tern-bench pingpong" help
answers "default 400, cpu 1" nic --help
answers "--data" help
answers "pull or push, as the library does; default auto" ep --help
answers "three kinds of scales; default fp8" ll --help
answers "a (token, rank) once; default 100" ll --help
for command in "" ep ll nic wire demo put get atomic signal pingpong barrier; do
    answers "tern-bench $(sed -n 's/^#define TERN_VERSION_[MP][A-Z]* *//p' include/tern/tern.h | paste -sd.)" $command --version
done

# lost PROGRAM ARGUMENT...: standard output cannot be written: it says so, and exits with 2
lost()
{
    timeout 200 "$@" > /dev/full 2> "$scratch/err"
    status=$?
    name=$(basename "$1")
    shift
    if [ $status -eq 2 ] && grep -q 'standard output is lost' "$scratch/err"; then
        ok "$name $* fails where nothing can be written"
    else
        sed 's/^/# /' "$scratch/err"
        not_ok "$name $* fails where nothing can be written (status $status)"
    fi
}
if [ -c /dev/full ]; then
    lost "$bench" ep --ranks 2 --tokens 4 --hidden 64 --iters 1
    lost "$bench" --version
    lost "$bench" help
    lost "$bench" ll --help
    lost "$build/bin/tern-info"
    lost "$build/bin/tern-info" -c
    lost "$build/bin/tern-info" --help
    lost "$build/bin/tern-info" --version
else
    skip "output that cannot be written: there is no /dev/full"
fi

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
invalid TERN_TRACE_EVENTS many
invalid TERN_PROXY carrier-pigeon
invalid TERN_PROXY fabric:
invalid TERN_SOFTNIC packets:x
invalid TERN_NIC_RECORDS 2
if run 1 env TERN_NICS=mlx5_99 "$build/bin/tern-info" && grep -qF '"mlx5_99"' "$scratch/err"; then
    ok "tern-info refuses a NIC that is not here"
else
    not_ok "tern-info refuses a NIC that is not here"
fi
finish
