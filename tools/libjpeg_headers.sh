#!/bin/sh
# Installs the libjpeg-turbo headers if they are missing and root and apt are available. Without
# them fastload is installed without its native core.
[ "${CXX:-}" = false ] && exit 0
echo '#include <stdio.h>
#include <jpeglib.h>' | ${CC:-cc} -E -x c - >/dev/null 2>&1 && exit 0
command -v "${CC:-cc}" >/dev/null 2>&1 || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 0
echo "jpeglib.h is missing: installing libjpeg-dev" >&2
{ apt-get install -y -qq libjpeg-dev || { apt-get update -qq && apt-get install -y -qq libjpeg-dev; }; } >/dev/null 2>&1 ||
    echo "cannot install libjpeg-dev: continuing without the native core" >&2
exit 0
