#!/bin/sh
# Installs Debian's Chromium if no browser is there and root and apt are available. Some tests draw
# report pages with it. Without it they are skipped, or fail if FASTLOAD_REQUIRE_CHROMIUM=1 is set.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || exit 0
echo "no browser was found: installing chromium" >&2
install() { apt-get install -y -qq --no-install-recommends chromium; }
{ install || { apt-get update -qq && install; }; } >/dev/null 2>&1 ||
    echo "cannot install chromium: tests that need it are skipped, or fail in CI" >&2
exit 0
