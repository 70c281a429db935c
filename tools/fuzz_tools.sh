#!/bin/sh
# Installs Debian's clang with libFuzzer and llvm-cov if they are missing and root and apt are there.
command -v clang++ >/dev/null 2>&1 && command -v llvm-cov >/dev/null 2>&1 && exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || {
    echo "make fuzz needs clang++ with libFuzzer, llvm-profdata and llvm-cov" >&2
    exit 1
}
echo "clang was not found: installing clang and llvm" >&2
install() { apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
install clang llvm || { apt-get update -qq && install clang llvm; } || exit 1
# The sanitizers and libFuzzer are in a package of their own.
install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
