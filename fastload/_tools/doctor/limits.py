"""Every threshold of the doctor with its reason. Shares refer to the run's time without warm-up."""

from __future__ import annotations

# --- what counts as a finding
WARN_SHARE = 0.02  # two equal runs differ by 1-2 %; a smaller loss is within that noise
BAD_SHARE = 0.10  # a larger loss is worth a day of work
# Taking a ready batch and its bookkeeping cost up to 3 % of a short step. Waiting starts above.
DATA_SHARE = 0.05
TRANSFER_SHARE = 0.08  # a pinned copy that overlaps the step is 1-3 % of it
RANK_SHARE = 0.05  # healthy ranks of one machine differ by 2-3 % (clocks, NUMA)
JITTER_SHARE = 0.03  # slow steps without a period: garbage collection and the like stay below 1 %

# --- warm-up (excluded); the rule is in account.py
CHUNK_STEPS = 10  # steps judged together, so that one slow batch is not mistaken for warm-up
WARM_FACTOR = 1.25  # warm-up ends where a chunk takes at most this times the second half's median
WARM_PART = 4  # at most 1/4 of the run is warm-up; slower for longer is a finding
WARM_STEPS = 120  # what the monitor's gate excludes; a short run may lose as many, up to its half

# --- slow steps and their periods
# The same factor as the probe's "slow": users notice a step of twice the median. Noise of 15 %
# reaches 1.5.
SLOW_FACTOR = 2.0
STRETCH_FACTOR = 1.5  # a whole row (10 steps) this slow is not chance
GAP_S = 1.5  # time between two rows that no step covers; whole-second clocks are off by up to 1
PERIOD_TIMES = 3  # any two slow steps have a distance; three at equal distance are rarely chance
PERIOD_FILLED = 0.8  # share of a period's positions that must be slow; tolerates one missed save
PERIOD_SLACK = 20  # from this period on, a stall may be off by one step (save before or after it)
EXACT_PERIOD = 40  # a shorter period must explain most slow steps, or noise always contains one
SHORT_S = 1.0  # frequent shorter stalls are called logging
LOGGING_STEPS = 500  # users log every 1 to 500 steps and save less often
LONG_S = 30.0  # no checkpoint takes longer; a longer pause is called an evaluation
RARE_WAIT = 50  # data waits rarer than one in 50 steps are hiccups; otherwise the loader is slow
CAUSE_PART = 0.5  # a slow step is the loader's fault if data wait is half of the lost time

# --- why is the data late
READ_PART = 0.5  # reading is the largest part of a sample's time: the disk, not the CPU
IOWAIT_PERCENT = 15.0  # CPU time waiting for the disk; idle and busy machines show 0-3
CPU_PERCENT = 90.0  # mean over all cores; above this, more threads only compete
SWAP_BYTES_S = 1e6  # a few kB/s is housekeeping by the kernel; 1 MB/s is memory that the job needs

# --- GPU
THROTTLE_PART = 0.10  # share of the samples; shorter throttling is a peak
CLOCK_DROP = 0.05  # a fully used GPU runs at its power cap; it counts if it costs 5 % of the clock
UTIL_LOW = 70.0  # percent; below this, with data ready and no stall, the GPU waits for the host
UTIL_BUSY = 85.0  # percent; from here on a GPU counts as busy
POWER_LOW = 0.60  # of the limit while busy; rule of thumb for small kernels or float32 without TF32

# --- two runs
SAME_SPEED = 0.05  # samples/s that differ by less are called equal
SAME_BATCH = 0.02  # mean batch sizes that differ by less are equal (a short last batch)

# --- untrusted input
MAX_FILE_BYTES = 1 << 30  # a metrics file of 10 million rows has 3 GB and must be cut first
MAX_SECONDS = 1e7  # a step of 115 days is a damaged number
MAX_STEP = 1 << 52  # larger step numbers are not exact in float64
MAX_ROW_STEPS = 10**6  # more steps in one row are a jump in the numbering
