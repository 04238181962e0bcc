#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The public headers compile alone, without a warning, in C99, C11 and C++17, by every compiler that is here. The
# one for kernels is for GNU C and nvcc (test/install.sh takes it from where it is installed).
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

strict="-Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude"

# alone COMPILER STANDARD LANGUAGE
alone()
{
    if ! have "$1"; then
        skip "tern.h alone by $1 $2: there is no $1"
        return
    fi
    for header in $(ls include/tern/*.h | grep -v tern_device.h); do
        printf '#include "%s"\n#include "%s"\n' "${header#include/}" "${header#include/}" > "$scratch/alone.$3"
        "$1" "-std=$2" $strict "$scratch/alone.$3" > "$scratch/errors" 2>&1
        check "$(basename "$header") alone by $1 $2" "$scratch/errors"
    done
}

alone gcc c99 c
alone gcc c11 c
alone clang c99 c
alone clang c11 c
alone g++ c++17 cc
alone clang++ c++17 cc

for compiler in gcc clang; do
    if have $compiler; then
        printf '#include "tern/tern_device.h"\n#include "tern/tern_device.h"\n' > "$scratch/device.c"
        "$compiler" -std=gnu11 -Wall -Wextra -Wc++-compat -Wvla -Werror -fsyntax-only -Iinclude -Isrc "$scratch/device.c" > \
            "$scratch/errors" 2>&1
        check "tern_device.h alone by $compiler gnu11" "$scratch/errors"
    else
        skip "tern_device.h alone by $compiler: there is no $compiler"
    fi
done

# Every structure can be initialised as documented, in both languages.
for name in $(sed -n 's/^#define \(TERN_[A-Z_]*\)_INIT .*/\1/p' include/tern/*.h); do
    echo "struct $(echo "$name" | tr 'A-Z' 'a-z') v_$name = ${name}_INIT;"
done > "$scratch/init.body"
{ echo '#include "tern/tern.h"'; cat "$scratch/init.body"; } > "$scratch/init.c"
cp "$scratch/init.c" "$scratch/init.cc"
for pair in gcc:c99:c g++:c++17:cc clang:c99:c; do
    compiler=${pair%%:*} rest=${pair#*:}
    if have "$compiler"; then
        "$compiler" "-std=${rest%:*}" $strict "$scratch/init.${rest#*:}" > "$scratch/errors" 2>&1
        check "$(grep -c . "$scratch/init.body") _INIT macros by $compiler ${rest%:*}" "$scratch/errors"
    else
        skip "_INIT macros by $compiler: there is no $compiler"
    fi
done

# No name leaves the header without the prefix. The language's own headers come through the compiler.
if have gcc; then
    echo '#include "tern/tern.h"' | gcc -std=c99 -Iinclude -E -dM - | sed -n 's/^#define \([A-Za-z_0-9]*\).*/\1/p' |
        sort > "$scratch/all"
    printf '#include <stddef.h>\n#include <stdint.h>\n' | gcc -std=c99 -E -dM - |
        sed -n 's/^#define \([A-Za-z_0-9]*\).*/\1/p' | sort > "$scratch/theirs"
    comm -23 "$scratch/all" "$scratch/theirs" | grep -v '^TERN_' > "$scratch/errors"
    check "every macro of tern.h begins with TERN_" "$scratch/errors"
    # The dialect's own vocabulary, which is what a kernel of the cpu machine asks for.
    printf '%s\n' tid bid nthr nblk lane warp nwarps shared_memory > "$scratch/dialect"
    echo '#include "tern/tern_device.h"' | gcc -std=gnu11 -Iinclude -Isrc -E -dM - |
        sed -n 's/^#define \([A-Za-z_0-9]*\).*/\1/p' | sort > "$scratch/all"
    printf '#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n' | gcc -std=gnu11 -E -dM - |
        sed -n 's/^#define \([A-Za-z_0-9]*\).*/\1/p' | sort > "$scratch/theirs"
    comm -23 "$scratch/all" "$scratch/theirs" | grep -v '^TERN_' | grep -vxF -f "$scratch/dialect" > "$scratch/errors"
    check "and of tern_device.h, but for the dialect's" "$scratch/errors"
else
    skip "macro names: there is no gcc"
fi
finish
