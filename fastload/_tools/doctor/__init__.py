"""Says why a GPU waits: from recorded runs (examine), a loader (loader/), a training step (trainer/), and the machine."""
