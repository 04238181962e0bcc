#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Every acquire, release and fence outside the dialect says who its partner is: the words "pairs with" stand in a
# comment on the same line or within the three lines before. A reader can then follow each edge of the memory
# model in the source.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

pattern='(ld_acquire|st_release)_[a-z]+_u[0-9]+ *\(|(atom|red)_[a-z]+_(acqrel|acquire|release)_[a-z]+_u[0-9]+ *\(|fence_acqrel_[a-z]+ *\(|__ATOMIC_(ACQUIRE|RELEASE|ACQ_REL)'

# The dialect defines these words and the executor is their other side; the reference has one thread.
files=$(ls src/*/*.c src/*/*.h bench/*.c bench/*.h 2> /dev/null | grep -vE '^src/(simt|ref)/')
uses=0
: > "$scratch/errors"
for file in $files; do
    awk -v file="$file" -v pattern="$pattern" '
        { line[NR] = $0 }
        END {
            for (n = 1; n <= NR; n++) {
                code = line[n]
                if (code ~ /^ *(\*|\/\*)/ || code !~ pattern) {
                    continue
                }
                total++
                found = 0
                for (k = n - 3; k <= n; k++) {
                    if (k >= 1 && tolower(line[k]) ~ /pairs? with/) {
                        found = 1
                    }
                }
                if (!found) {
                    printf "%s:%d: %s\n", file, n, code
                }
            }
            printf "%d\n", total > "/dev/stderr"
        }' "$file" >> "$scratch/errors" 2>> "$scratch/total"
done
uses=$(awk '{ n += $1 } END { print n + 0 }' "$scratch/total")
check "$uses uses of acquire, release and fences name their partners" "$scratch/errors"
if [ "$uses" -gt 0 ]; then
    ok "the search finds uses"
else
    not_ok "the search finds no use at all"
fi
finish
