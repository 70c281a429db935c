"""The commands behind `fastload`: monitor, doctor, report, bench, inspect, selftest, migrate, demo."""
