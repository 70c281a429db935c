"""Every threshold of the doctor, with its reason. Shares are of the run's time without warm-up."""

from __future__ import annotations

# --- what counts as a finding
LOOK_SHARE = 0.02  # two equal runs differ by 1-2 %; less than this cannot be told from that
BAD_SHARE = 0.10  # more than this is worth a day of work
DATA_SHARE = 0.05  # taking a ready batch and its bookkeeping is up to 3 % of a short step; waiting starts above
TRANSFER_SHARE = 0.08  # a pinned copy that hides behind the step is 1-3 % of it
RANK_SHARE = 0.05  # ranks of one machine differ by 2-3 % without any fault (clocks, NUMA)
JITTER_SHARE = 0.03  # slow steps without a period: garbage collection and the like stay below 1 %

# --- warm-up (left out): see account.py for the rule
CHUNK_STEPS = 10  # steps that are judged together: one slow batch must not look like warm-up
WARM_FACTOR = 1.25  # warm-up ends where a chunk is no slower than this times the run's second half
WARM_PART = 4  # at most 1/4 of the run is warm-up; slower for longer is a finding, not warm-up
WARM_STEPS = 120  # what the monitor's gate leaves out; a short run may lose so many, up to its half

# --- slow steps and their periods
SLOW_FACTOR = (
    2.0  # as in the probe's "slow": a step of twice the median is felt; noise of 15 % reaches 1.5
)
STRETCH_FACTOR = 1.5  # a whole row (10 steps) this slow: chance does not do that ten times in a row
GAP_S = 1.5  # time between two rows that no step accounts for; clocks in whole seconds are off by up to 1
PERIOD_TIMES = 3  # two slow steps always have "a period"; three at equal distance seldom by chance
PERIOD_FILLED = (
    0.8  # of the places a period demands, so many must be slow: one missed save is forgiven
)
PERIOD_SLACK = (
    20  # a period of 20 steps and more may be off by one step (saved before or after the step)
)
EXACT_PERIOD = (
    40  # below this a period must explain most slow steps, or chance finds one in any noise
)
SHORT_S = 1.0  # shorter stalls that come often are called logging
LOGGING_STEPS = 500  # people log every 1 to 500 steps, and save more seldom
LONG_S = 30.0  # no checkpoint takes longer; from here on a pause is called an evaluation
RARE_WAIT = (
    50  # data waits rarer than one in 50 steps are hiccups; more often the loader is too slow
)
CAUSE_PART = 0.5  # a slow step is the loader's when waiting for data is half of what was lost

# --- why is the data late
READ_PART = 0.5  # reading is the largest part of a sample's time: the disk, not the processor
IOWAIT_PERCENT = 15.0  # processors waiting for the disk; an idle or a busy machine shows 0-3
CPU_PERCENT = 90.0  # mean over all cores: from here on more threads only wait for each other
SWAP_BYTES_S = 1e6  # some kB/s is the kernel tidying up; 1 MB/s is memory that the job needs

# --- GPU
THROTTLE_PART = 0.10  # of the samples: shorter throttling is a peak, not a state
CLOCK_DROP = 0.05  # a power cap that costs less than 5 % of the clock is how a full GPU looks
UTIL_LOW = (
    70.0  # percent: with data there and no stall, a GPU less busy than this waits for its host
)
UTIL_BUSY = 85.0  # a GPU that counts as busy
POWER_LOW = (
    0.60  # of the limit, while busy: rule of thumb for small kernels or float32 without TF32
)

# --- two runs
SAME_SPEED = 0.05  # samples/s closer than this are called the same
SAME_BATCH = 0.02  # mean batch sizes closer than this are the same (a short last batch)

# --- untrusted input
MOST_BYTES = (
    1 << 30
)  # of a file; a metrics file of 10 million rows has 3 GB and wants cutting first
MOST_SECONDS = 1e7  # a step of 115 days is a damaged number
MOST_STEPS = 1 << 52  # iteration numbers beyond are not exact in float64
MOST_ROW_STEPS = 10**6  # in one row; more is a jump in the numbers, not steps
