"""Tries to break the package: faults in good files, bad files and images, kills, long runs; see docs/trust.md."""
