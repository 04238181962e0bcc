#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# An installed Tern can be used: a program is built through pkg-config, shared and static, and through CMake's
# find_package, and runs; uninstall leaves nothing behind.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

# Not the jobserver of the make that runs this script.
unset MAKEFLAGS MAKELEVEL MFLAGS
stage=$scratch/stage
prefix=/opt/tern
version=$(sed -n 's/^#define TERN_VERSION_[MP][A-Z]* *//p' include/tern/tern.h | paste -sd.)
run_make() { ${MAKE:-make} VARIANT="${TERN_VARIANT:-release}" CUDA="${TERN_CUDA:-0}" CC="${CC:-gcc}" PREFIX=$prefix DESTDIR="$stage" "$@"; }

# Under the mask of those whose own files nobody else reads.
if ! (umask 077; run_make install) > "$scratch/log" 2>&1; then
    sed 's/^/# /' "$scratch/log"
    not_ok "make install"
    finish
fi
ok "make install"

find "$stage$prefix" '(' -type f ! -perm -004 -o -type d ! -perm -005 ')' > "$scratch/errors"
check "whoever the mask of the one who installs would shut out may read all of it" "$scratch/errors"

cat > "$scratch/use.c" <<'END'
#include <stdio.h>
#include <tern/tern.h>

int main(void)
{
    struct tern_comm *comm = NULL;
    struct tern_comm_config config = TERN_COMM_CONFIG_INIT;
    config.machine = TERN_MACHINE_CPU;
    if (tern_comm_open_all(1, &config, &comm) != TERN_OK) {
        puts(tern_last_error());
        return 1;
    }
    tern_comm_close(comm);
    printf("%u\n", (unsigned)tern_version());
    return 0;
}
END

# try NAME COMMAND...: the command's output is shown if it fails.
try()
{
    name=$1
    shift
    if "$@" > "$scratch/log" 2>&1; then
        ok "$name"
    else
        sed 's/^/# /' "$scratch/log"
        not_ok "$name"
    fi
}

export LD_LIBRARY_PATH="$stage$prefix/lib"
if have pkg-config; then
    export PKG_CONFIG_PATH="$stage$prefix/lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$stage"
    try "pkg-config gives version $version" pkg-config --exact-version="$version" tern
    try "a program links through pkg-config" ${CC:-gcc} "$scratch/use.c" $(pkg-config --cflags --libs tern) -o "$scratch/use"
    try "and runs" "$scratch/use"
    # The private libraries name files outside the stage, which the sysroot option does not concern.
    unset PKG_CONFIG_SYSROOT_DIR
    try "a program links statically" ${CC:-gcc} "$scratch/use.c" "-I$stage$prefix/include" "$stage$prefix/lib/libtern.a" \
        $(pkg-config --static --define-variable=cuda_libdir="${TERN_CUDA_LIBDIR:-}" --libs tern | sed 's/-ltern\b//') \
        -o "$scratch/use_static"
    try "and runs" env -u LD_LIBRARY_PATH "$scratch/use_static"
else
    skip "linking through pkg-config: there is no pkg-config"
fi

if have cmake; then
    mkdir "$scratch/project"
    cp "$scratch/use.c" "$scratch/project"
    cat > "$scratch/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.13)
project(use C)
find_package(Tern $version REQUIRED)
add_executable(use use.c)
target_link_libraries(use Tern::tern)
add_executable(use_static use.c)
target_link_libraries(use_static Tern::tern_static)
END
    try "find_package(Tern) configures" cmake -S "$scratch/project" -B "$scratch/project/build" -DCMAKE_C_COMPILER="${CC:-gcc}" \
        -DCMAKE_PREFIX_PATH="$stage$prefix" -DTERN_CUDA_LIBDIR="${TERN_CUDA_LIBDIR:-}"
    try "and builds" cmake --build "$scratch/project/build"
    try "and runs" "$scratch/project/build/use"
    try "and runs linked statically" "$scratch/project/build/use_static"
else
    skip "find_package(Tern): there is no cmake"
fi

# A kernel of the program's own: for the cpu machine in C, with libtern.a.
cp examples/06_put_signal.c examples/put_signal_kernel.c examples/put_signal.h examples/example.h "$scratch"
if have pkg-config; then
    try "a program with a kernel of its own links" ${CC:-gcc} -std=gnu11 "$scratch/06_put_signal.c" \
        "$scratch/put_signal_kernel.c" "-I$stage$prefix/include" "$stage$prefix/lib/libtern.a" \
        $(pkg-config --static --define-variable=cuda_libdir="${TERN_CUDA_LIBDIR:-}" --libs tern | sed 's/-ltern\b//') \
        -o "$scratch/own"
    try "and runs" env TERN_MACHINE=cpu timeout 60 "$scratch/own"
else
    skip "a program with a kernel of its own: there is no pkg-config"
fi

# And for GPUs in CUDA C++, whose author never heard of the dialect, and in the dialect.
cat > "$scratch/own.cu" <<'END'
#include <tern/tern_device.h>

struct vec16 { int x; };
static __device__ int tid() { return threadIdx.x + blockIdx.x * blockDim.x; }
static __device__ int lane(struct vec16 v) { return v.x; }

__global__ void own(const __grid_constant__ struct tern_net net, const __grid_constant__ struct tern_net_team team,
                    char *at, const char *from, uint64_t *flag, uint64_t *old, int *status)
{
    struct vec16 v = {tid()};
    int peer = (net.rank + 1) % net.num_ranks;
    int s = tern_put_signal_block(&net, peer, 0, at, from, 1 << 20, flag, 8, TERN_SIGNAL_ADD, 1);
    s |= tern_put_signal_nbi_warp(&net, peer, 0, at, from, 100, flag, 8, TERN_SIGNAL_SET, 1);
    s |= tern_put_nbi_warp(&net, peer, 0, at, from, 100) | tern_get(&net, peer, 0, at + 200, at, 8);
    s |= tern_put_inline(&net, peer, 0, at, 7, 4) | tern_signal_set(&net, peer, 0, flag + 1, 3, 4);
    s |= tern_atomic(&net, peer, 0, flag + 2, TERN_AMO_ADD, 1, 0, 8) | tern_fence(&net, peer, 0);
    s |= tern_atomic_fetch(&net, peer, 0, flag + 2, TERN_AMO_CAS, 1, 2, 8, old) | tern_quiet(&net, peer, 0);
    s |= tern_wait(&net, flag, TERN_COMPARE_GE, 1, 8, 0) | tern_quiet_all(&net);
    s |= tern_test(flag, TERN_COMPARE_EQ, 1, 8) | (tern_at_peer(&net, peer, at) == 0);
    s |= tern_barrier_block(&net, &team) | lane(v);
    *status = s;
}
END
nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc)
if [ -n "$nvcc" ]; then
    try "a kernel in CUDA C++ compiles, names of its own included" "$nvcc" -std=c++17 -arch=sm_80 -Werror all-warnings \
        "-I$stage$prefix/include" -c "$scratch/own.cu" -o "$scratch/own_cu.o"
    try "and one in the dialect" "$nvcc" -x cu -std=c++17 -arch=sm_80 -Werror all-warnings "-I$stage$prefix/include" \
        -c "$scratch/put_signal_kernel.c" -o "$scratch/own_dialect.o"
else
    skip "kernels in CUDA C++: there is no nvcc"
fi

for program in tern-run tern-info tern-trace tern-bench; do
    if [ -x "$stage$prefix/bin/$program" ]; then
        ok "$program is installed"
    else
        not_ok "$program is not installed"
    fi
done

for file in share/doc/tern/LICENSE share/doc/tern/NOTICE share/doc/tern/README.md share/tern/data/README.md; do
    if cmp -s "${file#share/*tern/}" "$stage$prefix/$file"; then
        ok "$file is installed"
    else
        not_ok "$file is not installed"
    fi
done
grep -ohE 'docs/[a-z-]+\.md' include/tern/*.h | sort -u | while read -r document; do
    cmp -s "$document" "$stage$prefix/share/doc/tern/${document#docs/}" || echo "$document"
done > "$scratch/errors"
check "the documents that headers name are installed" "$scratch/errors"
# In a folder without data, so that only the installed ones are left.
if (cd "$scratch" && TERN_MACHINE=cpu timeout 120 "$stage$prefix/bin/tern-bench" demo --iters 1 > "$scratch/log" 2>&1) &&
    grep -q '^# result .*: ok$' "$scratch/log"; then
    ok "the installed tern-bench finds its data: $(sed -n 's/^# routing *//p' "$scratch/log" | sed "s|$stage||")"
else
    sed 's/^/# /' "$scratch/log"
    not_ok "the installed tern-bench finds its data"
fi

# Only where it goes to may be named, and where CUDA usually is.
sed 's|/usr/local/cuda/lib64||' "$stage$prefix/lib/pkgconfig/tern.pc" "$stage$prefix"/lib/cmake/Tern/*.cmake |
    grep -nE "(^|[^A-Za-z0-9_}.])/" | grep -v "=$prefix" | grep -v '/\.\.' > "$scratch/errors"
check "no path of this machine in tern.pc and TernConfig" "$scratch/errors"

run_make uninstall > "$scratch/log" 2>&1
find "$stage" ! -type d > "$scratch/errors"
check "make uninstall removes every file" "$scratch/errors"
finish
