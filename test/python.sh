#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The Python package, built against the library here for the first Python that has torch, its headers and setuptools
# (PYTHON=... names one): its own tests and those of deep_ep (python/tests), in worlds of four processes over gloo; the
# program in README.md, and examples/python; its tools; the archive of the sources, the wheel from it, which must hold the
# library and deep_ep, serve every Python from 3.9 on, and work where it is unpacked, and the package built in place.
set -u
cd "$(dirname "$0")/.." || exit 2
. test/house.inc

build=${TERN_BUILD:-build/release}
needs='import os, sysconfig, setuptools, torch.distributed as dist
include = sysconfig.get_paths()["include"]
assert dist.is_available() and os.path.exists(include + "/Python.h")'
python=
for try in ${PYTHON:-python3 /usr/bin/python3}; do
    if have "$try" && "$try" -c "$needs" > /dev/null 2>&1; then
        python=$try
        break
    fi
done
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac # also from other folders
if [ -z "$python" ] || [ ! -e "$build/libtern.so" ]; then
    skip "the Python package: there is no Python with torch, setuptools and headers, or no $build/libtern.so"
    finish
fi

export TERN_LIBRARY="$build/libtern.so" TERN_MACHINE=cpu TERN_LOG=error OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
"$python" setup.py -q build --build-base "$scratch/base" --build-lib "$build/python" > "$scratch/errors" 2>&1
if [ ! -e "$build/python/tern/_tern.abi3.so" ]; then
    check "the Python package builds ($("$python" --version 2>&1))" "$scratch/errors"
    finish
fi
grep -E 'warning: .*\[-W' "$scratch/errors" > "$scratch/warnings"
check "the Python package builds without a warning ($("$python" --version 2>&1))" "$scratch/warnings"
export PYTHONPATH="$PWD/$build/python"

nm -D --undefined-only "$build/python/tern/_tern.abi3.so" | awk '{ print $2 }' |
    grep -E '^_Py|^PyUnicode_(AsUTF8|DATA)|^PyObject_GetBuffer' | grep -vE '^_Py_(Dealloc|NoneStruct)$|_SizeT$' > "$scratch/errors"
check "the extension keeps to the limited interface" "$scratch/errors"

"$python" python/tests/run.py > "$scratch/out" 2>&1
tail -n 1 "$scratch/out" | tr -c '0-9\n' ' ' > "$scratch/count"
sed '$d' "$scratch/out"
read -r p f s < "$scratch/count" && passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0})) ||
    not_ok "the tests of the package have no closing line: $(tail -n 1 "$scratch/out")"

awk '/^```python$/ { inside = 1; next } /^```$/ && inside { exit } inside' README.md > "$scratch/program.py"
timeout 200 "$python" "$scratch/program.py" > "$scratch/out" 2> "$scratch/stderr" || sed 's/^/# /' "$scratch/stderr"
for rank in 0 1 2 3; do
    echo "rank $rank: 64 tokens are home, gradients reach 64"
done > "$scratch/wanted"
sort "$scratch/out" | diff - "$scratch/wanted" > "$scratch/errors"
check "the Python program in README.md" "$scratch/errors"

"$python" -m tern.info > "$scratch/out" 2>&1
grep -q '^machine cpu: tern .* 1 rank' "$scratch/out" && ok "python -m tern.info" ||
    { sed 's/^/# /' "$scratch/out"; not_ok "python -m tern.info"; }

# example NAME LINE: status 0, and four lines of this form
example()
{
    timeout 200 "$python" "$1" > "$scratch/out" 2> "$scratch/stderr" && [ "$(grep -cE "^rank [0-3]: $2\$" "$scratch/out")" -eq 4 ]
}
percent='[0-9.]+ %'
for try in "moe_layer gradients within $percent of the dense layer's, loss [0-9]+ to [0-9]+" \
    "decode_loop 4 steps of 2 layers, 16 tokens, each within $percent of its experts' sum" \
    "decode_graph 8 steps of 2 layers, 16 routings, each within $percent of its experts' sum"; do
    name=${try%% *}
    example "examples/python/$name.py" "${try#* }" && ok "examples/python/$name.py: $(head -n 1 "$scratch/out")" ||
        { cat "$scratch/out" "$scratch/stderr" | sed 's/^/# /'; not_ok "examples/python/$name.py"; }
done
# An example that is wrong says so: weights left out, the first layer's experts in all layers.
mkdir "$scratch/wrong"
cp examples/python/ranks.py "$scratch/wrong"
sed 's/(y \* rows.topk_weights\[:, None\])/y/' examples/python/moe_layer.py > "$scratch/wrong/moe_layer.py"
sed 's/self.model.mine\[self.layer\]/self.model.mine[0]/' examples/python/decode_loop.py > "$scratch/wrong/decode_loop.py"
for name in moe_layer decode_loop; do
    cmp -s "examples/python/$name.py" "$scratch/wrong/$name.py" && not_ok "$name.py is to be made wrong"
    timeout 200 "$python" "$scratch/wrong/$name.py" > "$scratch/out" 2>&1
    [ $? -eq 1 ] && grep -q 'off by [0-9.]* %' "$scratch/out" && ok "$name.py sees that it is wrong" ||
        { sed 's/^/# /' "$scratch/out"; not_ok "$name.py sees that it is wrong"; }
done

"$build/bin/tern-run" -n 2 "$python" -m tern.bench --iterations 3 --json "$scratch/bench.json" > "$scratch/out" 2>&1
grep -q '^# result: 0 elements wrong: ok' "$scratch/out" && grep -q '"op": "ll_combine".*"ranks": 2' "$scratch/bench.json" &&
    ok "python -m tern.bench under tern-run" || { sed 's/^/# /' "$scratch/out"; not_ok "python -m tern.bench under tern-run"; }
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
for rank in 0 1; do # what torchrun sets
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 100 \
        "$python" -m tern.bench --iterations 3 --tokens 8 --ll-tokens "" > "$scratch/out.$rank" 2>&1 &
done
wait
grep -q '^ *8 *combine .* 2 *bf16 *0$' "$scratch/out.0" && [ ! -s "$scratch/out.1" ] && ok "and in a world of torch's" ||
    { sed 's/^/# /' "$scratch/out.0" "$scratch/out.1"; not_ok "and in a world of torch's"; }
if [ -x "$build/bin/tern-bench" ]; then
    "$python" -m tern.bench ep --machine cpu --ranks 2 --tokens 8,16 --json "$scratch/ep.json" > "$scratch/out" 2>&1 &&
        "$python" -m tern.plot "$scratch/ep.json" "$scratch/bench.json" -o "$scratch/out.svg" >> "$scratch/out" 2>&1
    [ "$(grep -c '<polyline' "$scratch/out.svg")" -ge 5 ] && ok "it runs tern-bench, and python -m tern.plot draws both" ||
        { sed 's/^/# /' "$scratch/out"; not_ok "it runs tern-bench, and python -m tern.plot draws both"; }
else
    skip "python -m tern.bench ep: there is no $build/bin/tern-bench"
fi
"$python" -m tern.host_cost --machine cpu --parts --json "$scratch/host.json" > "$scratch/out" 2>&1
"$python" - "$scratch/host.json" > "$scratch/errors" 2>&1 << 'END'
import json, sys
report = json.load(open(sys.argv[1]))
rows = {row["op"]: row for row in report["rows"]}
for op in ("dispatch", "combine", "ll_dispatch", "ll_combine"):
    row = rows[op]
    if not 0 < row["p10"] <= row["p50"] <= row["p90"] or not 0 < row["p10"] < row["library"]:
        print(row)  # an operation on the cpu machine takes far more than a call without one
END
grep -qE '^C: ll_combine  *[0-9.]+  *[0-9.]+$' "$scratch/out" || cat "$scratch/out" >> "$scratch/errors" # of --parts
check "python -m tern.host_cost" "$scratch/errors"

if ! "$python" -c 'import pip, wheel' > /dev/null 2>&1; then
    skip "the wheel: there is no pip or wheel for $python"
    finish
fi
# From an archive of the sources, as setup.py makes it: pip leaves folders of its own beside setup.py. The wheel is
# unpacked, not installed.
export TERN_LIBRARY="$PWD/$build/libtern.so"
"$python" setup.py -q egg_info --egg-base "$scratch" sdist -d "$scratch" > "$scratch/stdout" 2>&1
mkdir "$scratch/source"
tar -xzf "$scratch"/tern-*.tar.gz -C "$scratch/source" --strip-components=1 2> "$scratch/out"
for file in Makefile LICENSE pyproject.toml setup.py $(find include src python -type f ! -name '*.so*' ! -name '*.pyc'); do
    cmp "$file" "$scratch/source/$file"
done > "$scratch/errors" 2>&1
check "an archive of the sources has what the library and the package are built of" "$scratch/errors"
"$python" -m pip wheel -q --no-index --no-deps --no-build-isolation -w "$scratch/wheel" "$scratch/source" \
    > "$scratch/out" 2>&1
wheel=$(ls "$scratch"/wheel/tern-*-cp39-abi3-*.whl 2> /dev/null)
if [ -n "$wheel" ]; then
    ok "a wheel: $(basename "$wheel")"
else
    sed 's/^/# /' "$scratch/out"
    not_ok "a wheel for every Python from 3.9 on: $(ls "$scratch/wheel" 2> /dev/null)"
fi
(cd "$scratch" && mkdir site && cd site && "$python" -m zipfile -e "$wheel" . && unset TERN_LIBRARY &&
    PYTHONPATH=$PWD "$python" -c 'import tern, deep_ep.utils; print(tern.__version__, tern._tern.__file__)') > "$scratch/out" 2>&1
grep -q "^[0-9.]* $scratch/site/" "$scratch/out" && ok "it works where it is unpacked" ||
    { sed 's/^/# /' "$scratch/out"; not_ok "it works where it is unpacked"; }
(cd "$scratch/source" && "$python" setup.py -q build_ext --inplace && unset TERN_LIBRARY &&
    PYTHONPATH=$PWD/python "$python" -c 'import tern, deep_ep.utils; print(tern.__version__, tern._tern.__file__)') > "$scratch/out" 2>&1
grep -q "^[0-9.]* $scratch/source/python/" "$scratch/out" && ok "it works among its sources" ||
    { sed 's/^/# /' "$scratch/out"; not_ok "it works among its sources"; }
finish
