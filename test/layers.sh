#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Dependencies point down only. Each folder under src/ may include what is named beside it here and nothing
# else; public headers are allowed everywhere. "simt" and "machine" know each other's one interface: the cpu
# machine is a view of the executor, and both machines read the one list of
# kernels, and so does who launches one from "net".
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

# folder: allowed prefixes of #include "..."
rules='
core: core/
simt: simt/ machine/machine.h core/
machine: machine/ simt/executor.h kernels/kernels.h kernels/table_ core/
net: net/ kernels/kernels.h simt/simt.h machine/machine.h comm/socket.h core/
kernels: kernels/ net/ simt/simt.h
comm: comm/ net/proxy.h machine/machine.h core/
pgas: pgas/ kernels/ net/ comm/comm.h comm/carrier.h comm/courier.h machine/machine.h core/
ep: ep/ pgas/pgas.h kernels/ comm/comm.h machine/machine.h core/
api: api/ ep/ep.h pgas/pgas.h comm/ machine/machine.h core/
ref: ref/
'

# includes FOLDER: "file:line: path" of every #include "path"
includes()
{
    grep -nE '^ *# *include *"' "$1"/*.[ch] /dev/null | sed -E 's/^([^:]*:[0-9]+):.*"([^"]*)".*/\1: \2/'
}

for folder in src/*/; do
    name=$(basename "$folder")
    allowed=$(echo "$rules" | sed -n "s/^$name: //p")
    if [ -z "$allowed" ]; then
        not_ok "src/$name has no rule in test/layers.sh"
        continue
    fi
    : > "$scratch/errors"
    includes "src/$name" | while read -r where path; do
        good=0
        for prefix in tern/ $allowed; do
            case $path in "$prefix"*) good=1 ;; esac
        done
        [ $good = 1 ] || echo "$where includes $path" >> "$scratch/errors"
    done
    check "src/$name depends on $allowed" "$scratch/errors"
done

# The list that both machines read must bring nothing with it.
grep -nE '^ *# *include' src/kernels/kernels.h > "$scratch/errors"
check "kernels/kernels.h includes nothing" "$scratch/errors"

# Everything that knows CUDA is the cuda machine, its launch table and the dialect's PTX.
grep -nE '# *include *<(cuda|nv)|cuda[A-Z][A-Za-z]+ *\(|\bcu[A-Z][A-Za-z]+ *\(' src/*/*.[ch] |
    grep -vE '^src/(machine/cuda[a-z_]*\.[ch]|simt/ptx\.h):' > "$scratch/errors"
check "CUDA is called in machine/cuda*.c and simt/ptx.h only" "$scratch/errors"

grep -nE '\b(asm|__asm|__asm__)\b *(volatile|__volatile__|goto)? *\(|^\s*(asm|__asm__)\b' src/*/*.[ch] bench/*.[ch] |
    grep -vE '^src/simt/(ptx\.h|context_switch\.[ch]):' > "$scratch/errors"
check "assembly is in simt/ptx.h and simt/context_switch only" "$scratch/errors"

grep -nE '^ *# *include *"' examples/*.c examples/*.h /dev/null | grep -vE '"(tern/[a-z_]+|[a-z_]+)\.h"' > "$scratch/errors"
grep -nE '^ *# *include *"[a-z_]+\.h"' examples/*.c examples/*.h | sed 's/.*"\(.*\)"/\1/' | sort -u | while read -r header; do
    [ -f "examples/$header" ] || echo "$header is not a header of the examples"
done >> "$scratch/errors"
check "examples use the public headers, and their own, only" "$scratch/errors"

grep -nE '^ *# *include *"' python/src/*.[ch] | grep -vE '"(tern/tern|py_tern)\.h"' > "$scratch/errors"
check "the extension module of Python uses the public header, and its own, only" "$scratch/errors"

grep -nE '\bgetenv *\(' src/*/*.[ch] | grep -vE '^src/core/config\.c:' > "$scratch/errors"
check "the environment is read in core/config.c only" "$scratch/errors"
finish
