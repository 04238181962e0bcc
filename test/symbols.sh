#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The shared library exports what the headers declare and nothing else, needs nothing but the C library, and can be
# loaded late.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

library=${TERN_BUILD:-build/release}/libtern.so
if ! have nm || ! have readelf; then
    skip "symbols: there is no nm or readelf"
    finish
fi

nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort > "$scratch/exported"
cat include/tern/*.h | tr '\n' ' ' | sed -e 's/TERN_API/\n&/g' |
    sed -nE 's/^TERN_API [^(;]*[ *](tern_[a-z_0-9]+)\(.*/\1/p' | sort > "$scratch/declared"

comm -23 "$scratch/declared" "$scratch/exported" > "$scratch/errors"
check "all $(grep -c . "$scratch/declared") functions of the headers are exported" "$scratch/errors"
comm -13 "$scratch/declared" "$scratch/exported" > "$scratch/errors"
check "nothing else is exported" "$scratch/errors"

readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' > "$scratch/needed"
grep -vE '^(libc|libm|libdl|librt|libpthread|ld-linux.*)\.so' "$scratch/needed" > "$scratch/errors"
check "needs only the C library ($(tr '\n' ' ' < "$scratch/needed"))" "$scratch/errors"

readelf -d "$library" | grep STATIC_TLS > "$scratch/errors"
check "has no static TLS: programs whose libraries have used up the room for it can load it" "$scratch/errors"

soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
major=$(sed -n 's/^#define TERN_VERSION_MAJOR *//p' include/tern/tern.h)
if [ "$soname" = "libtern.so.$major" ]; then
    ok "SONAME is $soname"
else
    not_ok "SONAME is '$soname', not libtern.so.$major"
fi

nm -D --undefined-only "$library" | awk '{ print $2 }' | grep -E '^(_Z|__cxa_(throw|begin|guard|pure)|__gxx|cu[A-Z])' > "$scratch/errors"
check "refers to no C++ runtime and no driver" "$scratch/errors"
finish
