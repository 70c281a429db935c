"""Looks at a training run: the step probe writes metrics.jsonl, the monitor window.json; doctor and report read both."""
