"""The joint model: a curator whom users trust with their data."""
