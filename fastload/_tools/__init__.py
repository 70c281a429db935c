"""Commands: monitor, doctor, report, bench, inspect, selftest, migrate and demo."""
