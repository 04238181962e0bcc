#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tern-run starts a program as its caller would: with the caller's signals, and an exit status that says how it
# ended.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

run=${TERN_BUILD:-build/release}/bin/tern-run

# ends STATUS NAME COMMAND...: exits with that status
ends()
{
    wanted=$1 name=$2
    shift 2
    timeout 60 "$@" > "$scratch/out" 2>&1
    status=$?
    if [ $status -eq "$wanted" ]; then
        ok "$name"
    else
        sed 's/^/# /' "$scratch/out"
        not_ok "$name: status $status, expected $wanted"
    fi
}

ends 0 "all ranks exit with 0" "$run" -n 3 true
ends 7 "the status of the rank that fails" "$run" -n 3 sh -c '[ $TERN_RANK -ne 1 ] || exit 7'
ends 143 "a rank that dies of a signal" "$run" -n 2 sh -c '[ $TERN_RANK -ne 1 ] || kill -s TERM $$'
ends 124 "a run that takes too long" "$run" -n 2 --timeout 0.2 sleep 20

# The survivor outlives the grace of 2 s, after which it would be ended.
lost='[ $TERN_RANK -ne 1 ] || exit 7; sleep 3; echo survived; [ $TERN_RANK -ne 2 ] || exit 9'
ends 7 "with --keep-going the status is still that of the rank that failed first" "$run" -n 3 --keep-going sh -c "$lost"
if [ "$(grep -c '^survived$' "$scratch/out")" -eq 2 ] && [ "$(grep -cE 'rank (1.*7|2.*9)$' "$scratch/out")" -eq 2 ]; then
    ok "and the others run to their end, and what fails is told"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "and the others run to their end, and what fails is told"
fi
ends 124 "--keep-going is no reason to outlast --timeout" "$run" -n 2 --keep-going --timeout 0.3 \
    sh -c '[ $TERN_RANK -ne 1 ] || exit 7; exec sleep 20'
ends 2 "no number of ranks" "$run" true
ends 127 "no such program" "$run" -n 6 no-such-program
if [ "$(grep -c 'cannot run no-such-program: ' "$scratch/out")" -eq 1 ]; then
    ok "six ranks that cannot run say so once"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "six ranks that cannot run do not say so once"
fi

# Lines of ranks that never stop writing are passed on, and the loop sees to everything else, too. ends() cannot tell
# its own timeout from tern-run's, so here it is death by SIGKILL.
brief() { timeout -s KILL 10 sh -c 'exec "$@" > /dev/null' sh "$@"; }
if brief "$run" -n 1 -p --timeout 0.5 yes 2> "$scratch/err"; [ $? -eq 124 ]; then
    ok "--timeout ends a rank that never stops writing"
else
    not_ok "--timeout ends a rank that never stops writing"
fi
if brief "$run" -n 2 -p sh -c '[ $TERN_RANK -ne 0 ] || exec yes; exit 7' 2> "$scratch/err"; [ $? -eq 7 ]; then
    ok "a failed rank ends one that never stops writing"
else
    not_ok "a failed rank ends one that never stops writing"
fi
if brief sh -c '"$0" -n 1 -p yes & sleep 0.5; kill -s TERM $!; wait $!' "$run" 2> "$scratch/err"; [ $? -eq 143 ]; then
    ok "SIGTERM ends a rank that never stops writing"
else
    not_ok "SIGTERM ends a rank that never stops writing"
fi
# A process that left its rank's group outlives the run, and holds the pipe.
if have setsid; then
    if brief "$run" -n 1 -p sh -c 'setsid timeout 30 yes & sleep 0.2' 2> "$scratch/err"; then
        ok "who left its rank's group and writes on is not waited for"
    else
        not_ok "who left its rank's group and writes on is not waited for"
    fi
    "$run" -n 1 -p sh -c 'setsid sleep 1 & printf "the last"' > "$scratch/out" 2>&1
    printf '[0] the last\n' | cmp - "$scratch/out" > "$scratch/differ" 2>&1
    check "and the rank's last line is there, which nobody ended" "$scratch/differ"
else
    skip "who left its rank's group: there is no setsid"
fi

# lost STATUS NAME COMMAND...: its output cannot be written, which is said once and decides a status that was 0
lost()
{
    wanted=$1 name=$2
    shift 2
    timeout 60 "$@" > /dev/full 2> "$scratch/err"
    status=$?
    if [ $status -eq "$wanted" ] && [ "$(grep -c 'lost: ' "$scratch/err")" -eq 1 ]; then
        ok "$name"
    else
        sed 's/^/# /' "$scratch/err"
        not_ok "$name: status $status, expected $wanted"
    fi
}
if [ -c /dev/full ]; then
    lost 2 "lines of ranks that cannot be written are a failure" "$run" -n 2 -p seq 3
    lost 7 "but not the first one" "$run" -n 2 -p sh -c 'seq 3; exit 7'
    lost 2 "so is a version that cannot be written" "$run" --version
    lost 2 "and help" "$run" --help
else
    skip "output that cannot be written: there is no /dev/full"
fi
ends 0 "that the reader has gone is none" sh -c '{ sleep 0.3; "$0" -n 1 -p seq 3; echo $? > "$1"; } | :; exit $(cat "$1")' \
    "$run" "$scratch/status"

# A pipe may be set not to block, by whoever made it.
if have python3; then
    cat > "$scratch/nonblock.py" << 'END'
import os, subprocess, sys, time
read, write = os.pipe()
os.set_blocking(write, False)
run = subprocess.Popen([sys.argv[1], "-n", "1", "-p", "seq", "40000"], stdout=write)
os.close(write)
time.sleep(0.5) # the pipe is full
with open(read) as lines:
    num = sum(1 for line in lines)
sys.exit(0 if (num, run.wait()) == (40000, 0) else "%d lines, status %d" % (num, run.wait()))
END
    ends 0 "no line is lost where standard output does not block" python3 "$scratch/nonblock.py" "$run"
else
    skip "standard output that does not block: there is no python3"
fi

# tern-run itself ignores SIGPIPE; a rank must find it as tern-run did.
pipe='kill -s PIPE $$; exit 7'
timeout 60 sh -c "$pipe" > /dev/null 2>&1
alone=$? # 141, or 7 where whoever runs this ignores the signal
ends $alone "SIGPIPE does to a rank what it does to the program alone" "$run" -n 1 sh -c "$pipe"
ends 7 "SIGPIPE stays ignored for ranks if the caller ignores it" \
    sh -c "trap '' PIPE; exec \"\$0\" -n 1 sh -c '$pipe'" "$run"
finish
