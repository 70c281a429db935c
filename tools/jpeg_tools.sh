#!/bin/sh
# Adds cjpeg and jpegtran, which some tests make rare JPEGs with, where they are missing and root and apt are at hand.
# Without them those tests are skipped.
command -v jpegtran >/dev/null 2>&1 && command -v cjpeg >/dev/null 2>&1 && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 0
echo "jpegtran is missing: installing libjpeg-turbo-progs" >&2
{ apt-get install -y -qq libjpeg-turbo-progs || { apt-get update -qq && apt-get install -y -qq libjpeg-turbo-progs; }; } >/dev/null 2>&1 ||
    echo "libjpeg-turbo-progs could not be installed: some tests will be skipped" >&2
exit 0
