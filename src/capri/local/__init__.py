"""The local model as two programs: devices that keep their data, and an aggregator of reports."""
