#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The repository's own order: licence lines, lengths, names, and words that do not belong in it.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

files=$(find . \( -name .git -o -name build \) -prune -o -type f -print | sed 's|^\./||' | grep -vE '\.(npy|json)$|^LICENSE$|^test/fuzz/decode/' | sort)
sources=$(echo "$files" | grep -E '\.[ch]$')

# Split, so that this file does not find itself.
grep -nE 'TO''DO|FIX''ME|XX''X|HA''CK\b' $files > "$scratch/errors"
check "nothing is left to be done later" "$scratch/errors"
grep -nE '(^|[^A-Za-z0-9_.-])/(wo''rk|ho''me|ro''ot|Us''ers)/' $files > "$scratch/errors"
check "no path of one machine" "$scratch/errors"

for file in $sources; do
    head -n 1 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$file"
done > "$scratch/errors"
check "every source names its licence" "$scratch/errors"

wc -l $sources | awk '$2 != "total" && $1 > 800' > "$scratch/errors"
check "no source has more than 800 lines" "$scratch/errors"

# Words in backticks that begin with a folder of this repository, or are documents of its root; a star stands for
# any name.
for file in $(echo "$files" | grep -E '\.md$'); do
    awk '/^```/ { inside = !inside; next } !inside' "$file" | grep -oE '`[^`]+`' | tr -d '`' | tr ' ' '\n' |
        grep -E '^((bench|cmake|data|docs|examples|include|src|test|tools|\.ci)/[A-Za-z0-9_./*-]*|[A-Z]+\.md|Makefile)$' |
        sort -u | while read -r path; do
        ls -d $path > /dev/null 2>&1 || echo "$file: $path"
    done
done > "$scratch/errors"
check "paths in documents exist" "$scratch/errors"

for file in $sources; do
    basename "$file"
done | sort | uniq -d > "$scratch/errors"
check "names of source files are unique" "$scratch/errors"

awk 'length > 110 { print FILENAME ":" FNR }' $sources > "$scratch/errors"
check "no line of a source is longer than 110 columns" "$scratch/errors"

grep -nE ' +$' $files > "$scratch/errors"
check "no line ends in spaces" "$scratch/errors"
grep -n "$(printf '\t')" $sources > "$scratch/errors"
check "no tabs in sources" "$scratch/errors"
finish
