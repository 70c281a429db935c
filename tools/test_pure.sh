#!/bin/sh
# Installs fastload without a compiler and runs the unit tests that apply without the native core.
# usage: test_pure.sh VENV   (the venv of `make`, whose packages are reused)
set -eu
lender=$1
make "$lender/.checks"
rm -rf .venv-pure
trap 'rm -rf .venv-pure' EXIT
"$lender/bin/python" -m venv .venv-pure
python=$PWD/.venv-pure/bin/python
site_of() { "$1" -c 'import site; print(site.getsitepackages()[0])'; }
# A plain path: the .pth files in that folder (the editable fastload) are not followed.
site_of "$lender/bin/python" > "$(site_of "$python")/lender.pth"
CC=false CXX=false "$python" -m pip --disable-pip-version-check -q install --no-deps .
# Outside the checkout, so that the installed package is imported. It must report the missing core.
(cd / && "$python" -c '
import fastload
assert ".venv-pure" in fastload.__file__, fastload.__file__
assert not fastload.native_status(), "the core was built although the compiler was hidden"
print(fastload.native_status())')
# Skips tests that do not depend on the core; `make unit` runs all of them.
set -- -q -p no:cacheprovider -n logical --dist worksteal tests
for skipped in benchmarks fault tools; do
    set -- "$@" --ignore="tests/$skipped"
done
for part in cuda dali example framework fused gpu nvjpeg nvml selftest diagnose doctor monitor; do
    set -- "$@" --ignore-glob="tests/*/test_$part*"
done
"$python" -m pytest "$@"
