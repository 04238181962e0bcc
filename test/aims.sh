#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The tool that measures what Tern aims at: it runs what it says, and judges what is recorded by the figures there.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

tool=tools/tern-aims.py
bin=${TERN_BUILD:-build/release}/bin
recorded=bench/results/2026-11-26-8xH200
if ! have python3; then
    skip "aims: there is no python3"
    finish
fi

# ends NAME STATUS TEXT COMMAND...: with that status, and TEXT (fixed) in what it prints
ends()
{
    name=$1 status=$2 text=$3
    shift 3
    "$@" > "$scratch/out" 2>&1
    got=$?
    if [ $got -eq "$status" ] && grep -qF -- "$text" "$scratch/out"; then
        ok "$name"
    else
        tail -n 20 "$scratch/out" | sed 's/^/# /'
        not_ok "$name: exit status $got"
    fi
}

mkdir "$scratch/good" "$scratch/wrong" "$scratch/none"
ends "aims of a recorded run, some of them missed" 1 "27 aims met, 11 missed" python3 $tool report $recorded
ends "where it was measured" 1 \
    "8 GPUs, aims of H200. Measured on: cuda, NVIDIA H200; 8, a process each, 1 on a device" \
    python3 $tool report $recorded
ends "an aim that is met" 1 "| dispatch BF16, 24 SMs | at most 830 us | 813.3 | 808.4 | events |" \
    python3 $tool report $recorded
ends "an aim that is met in a row alone" 1 "| dispatch FP8, 24 SMs | at most 430 us | 435.3 | 429.9 | in a row |" \
    python3 $tool report $recorded
ends "an aim that is missed" 1 "| combine BF16, 24 SMs | at most 500 us | 507.5 | 500.7 | no |" \
    python3 $tool report $recorded
ends "an aim that nothing was measured for" 1 \
    "| two domains, 12 SMs, combine BF16, of the model | at least 92 % | | | no r8_ep_far.json |" \
    python3 $tool report $recorded
cp $recorded/r8_ep_sms8.json $recorded/r8_ep_sms16.json "$scratch/good/"
ends "rows of one file alone judge nothing" 2 "$scratch/good has nothing of 8 or of 4 ranks to judge" \
    python3 $tool report "$scratch/good"
cp bench/results/2026-11-26-8xH200-2/r8_after_ll_at_dispatch.json "$scratch/good/r8_ll_at_dispatch.json"
ends "a run that meets all" 0 "3 aims met, 0 missed" python3 $tool report "$scratch/good"
sed 's/"#wrong": 0/"#wrong": 7/' $recorded/r8_ep_sms24.json > "$scratch/wrong/r8_ep_sms24.json"
ends "a run with wrong elements is judged by nothing else" 2 "7 elements are wrong" \
    python3 $tool report "$scratch/wrong"
# spoils NAME WRONG FILE: what r8_FILE.json has to say is WRONG everywhere, in a folder of its own
spoils()
{
    mkdir "$scratch/$1"
    cp $drained/r8_ep_sms24.json $drained/r8_ep_tensor.json $drained/r8_wire.json $drained/r8_ll_at_dispatch.json "$scratch/$1/"
    sed -i "s/\"#wrong\": 0/\"#wrong\": $2/" "$scratch/$1/r8_$3.json"
}
drained=bench/results/2026-11-27-8xH200
spoils sound 0 wire
ends "a run that was compared" 1 "| dispatch, tensors in no window, extra, of a device copy | at most 105 % | 113.9 |" \
    python3 $tool report "$scratch/sound"
spoils blind null ll_at_dispatch
ends "one that compared nothing is judged by nothing else" 2 "ll_at_dispatch: dispatch of 128 tokens: no elements were compared" \
    python3 $tool report "$scratch/blind"
ends "and neither is the pair, which has no elements of its own" 2 "combine of 128 tokens: no elements were compared" \
    python3 -c "import runpy, sys
aims = runpy.run_path('$tool')
rows = aims['Measured']('$scratch/blind', 8)
for row in rows.file('ll_at_dispatch'):
    row['#wrong'] = 0 if row['op'] == 'dispatch' else None
rows.us('ll_at_dispatch', 'pair', 128)"
spoils wired null wire
ends "nor is a device copy that was not compared" 2 "wire: local: no bytes were compared" python3 $tool report "$scratch/wired"
spoils torn 3 wire
ends "or was wrong" 2 "wire: local: 3 bytes are wrong" python3 $tool report "$scratch/torn"
ends "a folder without measurements" 2 "$scratch/none has nothing of 8 or of 4 ranks to judge: r8_NAME.json" \
    python3 $tool report "$scratch/none"
printf '{' > "$scratch/none/r8_wire.json"
ends "a file that is no JSON" 2 "r8_wire.json" python3 $tool report "$scratch/none"
ends "a measurement that does not exist" 2 "no measurement is called ep_sms25" \
    python3 $tool run "$scratch/none" --only ep_sms25
ends "ranks that are odd" 2 "--ranks is 3" python3 $tool run "$scratch/none" --ranks 3
ends "programs that are not there" 2 "$scratch/none/tern-run: No such file" \
    python3 $tool run "$scratch/new" --bin "$scratch/none"
if [ -x "$bin/tern-bench" ] && [ -x "$bin/tern-run" ]; then
    ends "every measurement runs on the cpu machine" 0 "ll_far          done" \
        python3 $tool run "$scratch/all" --ranks 4 --machine cpu --bin "$bin"
    if [ "$(ls "$scratch/all")" = "$(python3 $tool run x --ranks 4 --list | sed 's/.*\(r4_[a-z0-9_]*.json\).*/\1/' |
        LC_ALL=C sort)" ]; then
        ok "and leaves a file each"
    else
        ls "$scratch/all" | sed 's/^/# /'
        not_ok "and leaves a file each"
    fi
    printf '#!/bin/sh\necho "no such NIC"; exit 3\n' > "$scratch/none/tern-bench"
    cp "$bin/tern-run" "$scratch/none/"
    chmod +x "$scratch/none/tern-bench"
    ends "a measurement that fails is named" 1 "ep_far          exit status 3: no such NIC" \
        python3 $tool run "$scratch/all" --ranks 4 --bin "$scratch/none" --only ep_far,ep_sms16
    ends "and the next one runs" 1 "ep_sms16        exit status" \
        python3 $tool run "$scratch/all" --ranks 4 --bin "$scratch/none" --only ep_far,ep_sms16
    ends "a measurement that takes too long" 1 "none after 0 s" \
        python3 $tool run "$scratch/all" --ranks 4 --machine cpu --bin "$bin" --only ep_sms8 --seconds 0
else
    not_ok "aims: $bin has no tern-bench and tern-run"
fi
finish
