#!/bin/sh
# Adds libjpeg-turbo's headers where they are missing and root and apt are at hand; goes on without otherwise:
# fastload installs without its native core, too.
[ "${CXX:-}" = false ] && exit 0
echo '#include <stdio.h>
#include <jpeglib.h>' | ${CC:-cc} -E -x c - >/dev/null 2>&1 && exit 0
command -v "${CC:-cc}" >/dev/null 2>&1 || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 0
echo "jpeglib.h is missing: installing libjpeg-dev" >&2
{ apt-get install -y -qq libjpeg-dev || { apt-get update -qq && apt-get install -y -qq libjpeg-dev; }; } >/dev/null 2>&1 ||
    echo "libjpeg-dev could not be installed: going on without the native core" >&2
exit 0
