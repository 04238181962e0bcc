#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Signals that come to tern-run: what ranks get of them, and when the run then ends. Ranks send them themselves, as
# tern-run is their parent, so that no check depends on who is first.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

run=${TERN_BUILD:-build/release}/bin/tern-run

# Whoever runs this may ignore signals, as a shell does for what it starts in the background.
clean="env --default-signal=HUP,INT,TERM,CHLD"
if ! $clean true 2> "$scratch/err"; then
    skip "signals: env has no --default-signal"
    finish
fi

# ends STATUS NAME COMMAND...: exits with that status, and not by the limit on its time
ends()
{
    wanted=$1 name=$2
    shift 2
    timeout -s KILL 20 $clean "$@" > "$scratch/out" 2> "$scratch/err"
    status=$?
    if [ $status -eq "$wanted" ]; then
        ok "$name"
    else
        sed 's/^/# /' "$scratch/err"
        not_ok "$name: status $status, expected $wanted"
    fi
}

# says NAME LINE...: these were the lines of the last command
says()
{
    name=$1
    shift
    printf '%s\n' "$@" | diff - "$scratch/out" > "$scratch/differ" 2>&1
    check "$name" "$scratch/differ"
}

# again COMMAND: a rank's command that runs another for half a minute at most
again() { printf 'i=0; while [ $i -lt 300 ]; do i=$((i + 1)); sleep 0.1; %s; done' "$1"; }

wait=$(again :)
for signal in INT HUP; do
    [ $signal = INT ] && status=130 || status=129
    ends $status "a rank that sees to SIG$signal" "$run" -n 1 sh -c "
        trap 'echo $signal; exit 0' $signal; kill -s $signal \$PPID; $wait"
    says "gets it, and no SIGTERM before it" $signal
    ends $status "a rank that sees to SIGTERM alone, and ignores SIG$signal" "$run" -n 1 --keep-going sh -c "
        trap '' $signal; trap 'echo TERM; exit 0' TERM; kill -s $signal \$PPID; $wait"
    says "gets SIGTERM in time" TERM
done
ends 143 "a rank that sees to SIGTERM" "$run" -n 1 sh -c "
    trap 'echo TERM; exit 0' TERM; kill -s TERM \$PPID; $wait"
says "gets it" TERM
# What comes again and again does not put off the end.
for signal in INT TERM; do
    [ $signal = INT ] && status=130 || status=143
    ends $status "SIG$signal, however often, ends ranks that ignore it" "$run" -n 2 sh -c "
        trap '' INT TERM; $(again "kill -s $signal \$PPID || exit")"
done

# What the caller ignores does nothing, here as to the program alone.
for signal in HUP INT TERM; do
    ends 0 "SIG$signal stays ignored if the caller ignores it" sh -c "trap '' $signal
        exec \"\$0\" -n 1 sh -c 'kill -s $signal \$PPID; sleep 0.3'" "$run"
done
ends 3 "a caller that ignores SIGCHLD learns how ranks ended" env --ignore-signal=CHLD "$run" -n 2 sh -c 'exit 3'
mine="grep -E Sig(Ign|Blk) /proc/self/status"
for ignored in CHLD PIPE,HUP,INT,TERM; do
    ends 0 "what a program finds ignored and blocked where $ignored is ignored" env --ignore-signal=$ignored $mine
    cp "$scratch/out" "$scratch/alone"
    ends 0 "and what a rank finds" env --ignore-signal=$ignored "$run" -n 1 $mine
    diff "$scratch/alone" "$scratch/out" > "$scratch/differ" 2>&1
    check "are the same" "$scratch/differ"
done
finish
