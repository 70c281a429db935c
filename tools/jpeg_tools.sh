#!/bin/sh
# Installs cjpeg and jpegtran if they are missing and root and apt are available. Some tests create
# rare JPEGs with them and are skipped otherwise.
command -v jpegtran >/dev/null 2>&1 && command -v cjpeg >/dev/null 2>&1 && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 0
echo "jpegtran is missing: installing libjpeg-turbo-progs" >&2
{ apt-get install -y -qq libjpeg-turbo-progs || { apt-get update -qq && apt-get install -y -qq libjpeg-turbo-progs; }; } >/dev/null 2>&1 ||
    echo "cannot install libjpeg-turbo-progs: some tests will be skipped" >&2
exit 0
