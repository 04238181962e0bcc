#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tern-run -p where nobody takes what it writes, as a paused pager does: it sees to signals, time and ranks all the
# same.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

run=${TERN_BUILD:-build/release}/bin/tern-run

# Whoever runs this may ignore signals, as a shell does for what it starts in the background.
clean="env --default-signal=INT,TERM"
$clean true 2> "$scratch/err" || clean=
# Open for reading, so that writers are not told that nobody is there.
mkfifo "$scratch/stalled" && exec 3<> "$scratch/stalled" || exit 2

# ends STATUS NAME COMMAND...: exits with that status, and not by the limit on its time, and says what is lost
ends()
{
    wanted=$1 name=$2
    shift 2
    timeout -s KILL 20 $clean "$@" > "$scratch/stalled" 2> "$scratch/err"
    status=$?
    if [ $status -eq "$wanted" ] && [ "$(grep -c 'lost: nobody takes it$' "$scratch/err")" -eq 1 ]; then
        ok "$name"
    else
        sed 's/^/# /' "$scratch/err"
        not_ok "$name: status $status, expected $wanted"
    fi
}

ends 124 "--timeout ends a run whose output nobody takes" "$run" -n 2 -p --timeout 0.5 timeout 60 yes
ends 143 "so does SIGTERM" "$run" -n 1 -p sh -c 'timeout 60 yes & sleep 1; kill -s TERM $PPID; wait'
if [ -n "$clean" ]; then
    ends 130 "and SIGINT" "$run" -n 1 -p sh -c 'timeout 60 yes & sleep 1; kill -s INT $PPID; wait'
else
    skip "SIGINT: env has no --default-signal"
fi
# Ranks have ended, and what they wrote has not been taken.
ends 124 "--timeout ends also a run that has no rank left" "$run" -n 8 -p --timeout 1 seq 10000

# says NAME FILES COMMAND...: likewise, with what tern-run itself says going there, too; but not what this shell says
says()
{
    name=$1 files=$2
    shift 2
    timeout -s KILL 20 sh -c "exec \"\$@\" $files" sh "$@"
    status=$?
    if [ $status -eq 124 ]; then
        ok "$name"
    else
        not_ok "$name: status $status, expected 124"
    fi
}
says "nor does anybody take what tern-run says" ">&3 2>&3" "$run" -n 2 -p -v --timeout 0.5 timeout 60 yes
says "which is so without -p, too" "2>&3" "$run" -n 2 -v --timeout 0.5 sleep 60

# The reader comes back when rank 0 has been ended (a zombie, until the run is over), and finds all of rank 1.
{
    timeout -s KILL 60 "$run" -n 2 -p sh -c 'echo $$ > "$0.$TERN_RANK"
        [ $TERN_RANK -ne 0 ] || exec timeout 90 yes
        seq 5000; sleep 1; exit 7' "$scratch/pid" 2> "$scratch/err"
    echo $? > "$scratch/status"
} | {
    i=0
    until [ $i -eq 200 ] || grep -q '^State:.Z' "/proc/$(cat "$scratch/pid.0")/status"; do
        sleep 0.1
        i=$((i + 1))
    done 2> "$scratch/until"
    [ $i -lt 200 ] && echo ended > "$scratch/ended"
    grep '^\[1\] [0-9]*$' > "$scratch/out"
}
if [ -s "$scratch/ended" ]; then
    ok "a failed rank ends the others though nobody takes the output"
else
    not_ok "a failed rank ends the others though nobody takes the output"
fi
if [ "$(cat "$scratch/status")" -eq 7 ] && [ "$(wc -l < "$scratch/out")" -eq 5000 ]; then
    ok "which waits for who comes back"
else
    not_ok "which waits for who comes back: status $(cat "$scratch/status"), $(wc -l < "$scratch/out") lines"
fi

# A terminal says that it has room when it has less than a line's.
if have python3; then
    cat > "$scratch/terminal.py" << 'PYTHON'
import pty, subprocess, sys
master, slave = pty.openpty()
run = subprocess.Popen([sys.argv[1], "-n", "1", "-p", "--timeout", "0.5", "timeout", "60", "yes", "y" * 2000],
                       stdin=subprocess.DEVNULL, stdout=slave)
sys.exit(run.wait())
PYTHON
    ends 124 "nor does a terminal keep a run from its end" python3 "$scratch/terminal.py" "$run"
else
    skip "a terminal that stalls: there is no python3"
fi
finish
