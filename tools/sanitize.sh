#!/bin/sh
# The core without Python under the compiler's sanitizers; ends at the first thing they find.
# usage: sanitize.sh VENV [ROUNDS]   needs the corpus (../shared/corpus or $FASTLOAD_CORPUS)
set -eu
python=$PWD/$1/bin/python
rounds=${2:-20000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" - "$work" <<'PY'
import sys
from pathlib import Path

from benchmarks.jobfile import write_job
from benchmarks.machine import photo_paths
from benchmarks.works import all_works

folder = Path(sys.argv[1])
for number, work in enumerate(all_works(8)):
    write_job(work, folder / f"{number}.job")
for path in photo_paths()[::60]:
    (folder / f"{path.stem}.jpg").write_bytes(path.read_bytes())
PY
for kind in address,undefined thread; do
    build=build/sanitize-$kind
    cmake -S . -B "$build" -G Ninja -DFASTLOAD_PYTHON=OFF -DFASTLOAD_TESTS=ON -DFASTLOAD_SANITIZE="$kind" -DCMAKE_BUILD_TYPE=None >/dev/null
    cmake --build "$build" >/dev/null
    [ "$kind" = thread ] || "$build/fuzz_transform" "$rounds" "$work"/*.jpg
    for job in "$work"/*.job; do
        "$build/driver" "$job" pool 2 4
        "$build/driver" "$job" stress 2 4
    done
done
echo "no finding"
