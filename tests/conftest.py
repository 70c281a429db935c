"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

# No deadline: how long a case takes says nothing on a shared machine. A failing case prints what repeats it.
settings.register_profile("fastload", deadline=None, print_blob=True)
settings.load_profile("fastload")
