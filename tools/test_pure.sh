#!/bin/sh
# Installs fastload with the compiler hidden and runs the unit tests that apply without the native core.
# usage: test_pure.sh VENV   (the venv of `make`, whose packages are lent: torch is not installed twice)
set -eu
lender=$1
make "$lender/.checks"
rm -rf .venv-pure
trap 'rm -rf .venv-pure' EXIT
"$lender/bin/python" -m venv .venv-pure
python=$PWD/.venv-pure/bin/python
site_of() { "$1" -c 'import site; print(site.getsitepackages()[0])'; }
# A plain path line: the lender's own .pth files (its editable fastload) are not followed from here.
site_of "$lender/bin/python" > "$(site_of "$python")/lender.pth"
CC=false CXX=false "$python" -m pip --disable-pip-version-check -q install --no-deps .
# From outside the checkout: the installed package, not the folder here, must import and know what is missing.
(cd / && "$python" -c '
import fastload
assert ".venv-pure" in fastload.__file__, fastload.__file__
assert not fastload.native_status(), "the core was built although the compiler was hidden"
print(fastload.native_status())')
# Once is enough for what the core has no part in; `make unit` runs all of it.
set -- -q -p no:cacheprovider -n logical --dist worksteal tests
for skipped in benchmarks fault tools; do
    set -- "$@" --ignore="tests/$skipped"
done
for part in cuda dali example framework fused gpu nvjpeg nvml selftest diagnose doctor monitor; do
    set -- "$@" --ignore-glob="tests/*/test_$part*"
done
"$python" -m pytest "$@"
