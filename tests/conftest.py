"""Settings for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

# A shell ignores SIGINT for what it runs in the background, and children inherit that: tests that interrupt a child need it as it is.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: how long a case takes says nothing on a shared machine. A failing case prints what repeats it.
settings.register_profile("fastload", deadline=None, print_blob=True)
settings.load_profile("fastload")
