"""Results to look at: ``capri report`` writes one page that opens anywhere, offline."""

from capri.report.reader import Report, read_report

__all__ = ["Report", "read_report"]
