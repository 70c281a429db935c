"""Measures training runs. StepProbe writes metrics.jsonl; the monitor writes window.json."""
