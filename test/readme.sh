#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The program in README.md compiles as it is printed there, without a warning, and does what it says: two ranks on
# the cpu machine, every token to both, so that each sum is twice the token.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/release}
if [ ! -e "$build/libtern.so" ]; then
    skip "the program in README.md: $build has no shared library"
    finish
fi
awk '/^```c$/ { inside = 1; next } /^```$/ && inside { exit } inside' README.md > "$scratch/program.c"
${CC:-gcc} -std=c99 -Wall -Wextra -Werror -Iinclude "$scratch/program.c" "-L$build" -ltern \
    "-Wl,-rpath,$PWD/$build" -o "$scratch/program" > "$scratch/errors" 2>&1
check "the program in README.md compiles ($(wc -l < "$scratch/program.c") lines)" "$scratch/errors"

TERN_MACHINE=cpu timeout 120 "$build/bin/tern-run" -n 2 "$scratch/program" > "$scratch/out" 2>&1
status=$?
for rank in 0 1; do
    echo "rank $rank: 128 rows came, the first sum begins with 3fbf"
done > "$scratch/wanted"
sort "$scratch/out" | diff - "$scratch/wanted" > "$scratch/errors"
check "and moves rows (exit status $status)" "$scratch/errors"
[ $status -eq 0 ] && ok "and exits with 0" || not_ok "and exits with $status"
finish
