#!/bin/sh
# build_ffcv.sh PYTHON PREFIX: builds FFCV for PYTHON with pip. If the headers of OpenCV and
# TurboJPEG are missing, on Debian and Ubuntu, their packages are first unpacked below PREFIX. That
# needs no root access and changes nothing outside of PREFIX.
set -eu
python=$1 prefix=$2
if ! pkg-config --exists opencv4 libturbojpeg; then
    command -v apt-get > /dev/null || { echo "no OpenCV and TurboJPEG headers (pkg-config opencv4 libturbojpeg)" >&2; exit 1; }
    mkdir -p "$prefix" && cd "$prefix"
    core=$(apt-cache depends libopencv-core-dev | sed -n 's/.*Depends: \(libopencv-core[0-9t][0-9a-z.]*\)$/\1/p' | head -1)
    process=$(apt-cache depends libopencv-imgproc-dev | sed -n 's/.*Depends: \(libopencv-imgproc[0-9t][0-9a-z.]*\)$/\1/p' | head -1)
    turbo=$(apt-cache depends libturbojpeg0-dev | sed -n 's/.*Depends: \(libturbojpeg[0-9]*\)$/\1/p' | head -1)
    tbb=$(apt-cache depends "$core" | sed -n 's/.*Depends: \(libtbb[0-9]*\)$/\1/p' | head -1)
    apt-get -q download libopencv-core-dev libopencv-imgproc-dev libturbojpeg0-dev "$core" "$process" "$turbo" $tbb liblapack3 libblas3 libgfortran5 libquadmath0 > /dev/null 2>&1
    for package in *.deb; do dpkg -x "$package" .; done
    lib=$prefix/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2> /dev/null || echo x86_64-linux-gnu)
    include=$prefix/usr/include/opencv4
    # FFCV only uses cv::resize; the full header and pkg-config file would require every module.
    printf '#include <opencv2/core.hpp>\n#include <opencv2/imgproc.hpp>\n' > "$include/opencv2/opencv.hpp"
    mkdir -p "$prefix/pc"
    printf 'Name: OpenCV\nDescription: core and imgproc\nVersion: 4\nCflags: -I%s\nLibs: -L%s -lopencv_core -lopencv_imgproc\n' \
        "$include" "$lib" > "$prefix/pc/opencv4.pc"
    printf 'Name: libturbojpeg\nDescription: TurboJPEG\nVersion: 2\nCflags: -I%s\nLibs: -L%s -lturbojpeg\n' \
        "$prefix/usr/include" "$lib" > "$prefix/pc/libturbojpeg.pc"
    export PKG_CONFIG_PATH="$prefix/pc" LDFLAGS="-Wl,--disable-new-dtags,-rpath,$lib:$lib/lapack:$lib/blas" CPLUS_INCLUDE_PATH="$prefix/usr/include:$prefix/usr/include/x86_64-linux-gnu"
fi
"$python" -m pip install -q --disable-pip-version-check --no-cache-dir --no-deps --no-build-isolation ffcv
"$python" -m pip install -q --disable-pip-version-check terminaltables pytorch_pfn_extras fastargs assertpy numba
