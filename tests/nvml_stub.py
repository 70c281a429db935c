"""A stub of NVML that the tests compile. nvidia-ml-py loads it as libnvidia-ml.so.1."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Two GPUs. GPU 0 is at 96 % and throttled by power and heat. GPU 1 alternates between 100 % and
# 0 %. The environment variable NVML_STUB selects faults.
SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef int R; typedef struct { int index, part; } Dev; typedef unsigned long long U64;
static Dev devices[2] = {{0, 0}, {1, 0}}, parts[2] = {{0, 1}, {0, 2}};
static int calls = 0, up = 0;
static int has(const char *word) { const char *faults = getenv("NVML_STUB"); return faults && strstr(faults, word) != NULL; }
static R gone(Dev *d) {
    if (!up) return 1;
    return has("gone") && d->index == 1 && calls > 12 ? 15 : 0;
}
#define DEV(h) Dev *d = (Dev *)(h); R bad = gone(d); if (bad) return bad;
R nvmlInitWithFlags(unsigned flags) { if (has("unloaded")) return 9; up = 1; return 0; }
R nvmlShutdown(void) { up = 0; return 0; }
const char *nvmlErrorString(R code) {
    return code == 3 ? "Not Supported" : code == 4 ? "Insufficient Permissions" : code == 9 ? "Driver Not Loaded"
         : code == 15 ? "GPU is lost" : code == 13 ? "Function Not Found" : code == 10 ? "Timeout" : "Error";
}
R nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "580.00"); return 0; }
R nvmlDeviceGetCount_v2(unsigned *n) { *n = has("none") ? 0 : 2; return 0; }
R nvmlDeviceGetHandleByIndex_v2(unsigned i, Dev **out) { if (has("denied") && i == 1) return 4; *out = &devices[i]; return 0; }
R nvmlDeviceGetName(Dev *h, char *out, unsigned n) { DEV(h) snprintf(out, n, d->part ? "Stub MIG 1g" : "Stub 9000"); return 0; }
R nvmlDeviceGetUUID(Dev *h, char *out, unsigned n) { DEV(h) snprintf(out, n, "GPU-%c%c%c%c-stub", 'a' + d->index, 'a', 'a', 'a'); return 0; }
R nvmlDeviceGetMemoryInfo(Dev *h, U64 *m) { DEV(h) m[0] = 24576ULL << 20; m[2] = (d->part ? 100ULL : 2048ULL) << 20; m[1] = m[0] - m[2]; return 0; }
R nvmlDeviceGetUtilizationRates(Dev *h, unsigned *u) {
    DEV(h)
    if (has("mig") && d->index == 0) return 3;
    if (has("timeout") && calls % 2) { calls++; return 10; }
    u[0] = d->index == 0 ? 96 : (calls / 8) % 2 ? 0 : 100; u[1] = 10; calls++; return 0;
}
R nvmlDeviceGetPowerUsage(Dev *h, unsigned *mw) { DEV(h) *mw = 300000; return 0; }
R nvmlDeviceGetEnforcedPowerLimit(Dev *h, unsigned *mw) { DEV(h) *mw = 575000; return 0; }
R nvmlDeviceGetClockInfo(Dev *h, int kind, unsigned *mhz) { DEV(h) *mhz = kind == 1 ? 1980 : kind == 2 ? 10000 : 0; return 0; }
R nvmlDeviceGetPcieThroughput(Dev *h, int way, unsigned *kib) { DEV(h) *kib = way == 1 ? 2000000 : 1000000; return 0; }
R nvmlDeviceGetMigMode(Dev *h, unsigned *now, unsigned *later) { DEV(h) *now = *later = has("mig") && d->index == 0; return has("mig") ? 0 : 3; }
R nvmlDeviceGetMaxMigDeviceCount(Dev *h, unsigned *n) { DEV(h) *n = 7; return 0; }
R nvmlDeviceGetMigDeviceHandleByIndex(Dev *h, unsigned i, Dev **out) { DEV(h) if (i > 1) return 6; *out = &parts[i]; return 0; }
R nvmlDeviceGetTemperature(Dev *h, int sensor, unsigned *c) { DEV(h) *c = 71; return 0; }
R nvmlDeviceGetCurrentClocksThrottleReasons(Dev *h, U64 *bits) { DEV(h) *bits = 0x8; return 0; }
#ifndef OLD
R nvmlDeviceGetTemperatureV(Dev *h, unsigned *t) { DEV(h) t[2] = 72; return 0; }
R nvmlDeviceGetCurrentClocksEventReasons(Dev *h, U64 *bits) { DEV(h) *bits = d->index == 0 ? 0x4 | 0x20 | 0x2 : 0x1; return 0; }
R nvmlDeviceGetJpgUtilization(Dev *h, unsigned *u, unsigned *period) { DEV(h) if (d->index == 1) return 3; *u = 40; *period = 1000; return 0; }
R nvmlDeviceGetMemoryInfo_v2(Dev *h, void *m) {
    struct { unsigned version; U64 total, reserved, free, used; } *v2 = m; DEV(h)
    v2->total = 24576ULL << 20; v2->used = 3072ULL << 20; return 0;
}
R nvmlDeviceGetTotalEnergyConsumption(Dev *h, U64 *mj) {
    struct timespec now; DEV(h) clock_gettime(CLOCK_MONOTONIC, &now);
    *mj = (U64)(400000.0 * (now.tv_sec + now.tv_nsec / 1e9)); return 0;         /* 400 W; the power reading is 300 W */
}
#endif
"""


def compiled(folder: Path, *flags: str) -> Path:
    """Compiles the stub and returns the folder for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("not run: no C compiler")
    folder.mkdir(parents=True)
    (folder / "stub.c").write_text(SOURCE)
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            *flags,
            "-o",
            str(folder / "libnvidia-ml.so.1"),
            str(folder / "stub.c"),
        ],
        check=True,
    )
    return folder


def environment(library: Path, faults: str = "") -> dict[str, str]:
    """Returns the environment of a process that loads the stub with these faults."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STUB": faults}
