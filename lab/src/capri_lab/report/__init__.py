"""Results to look at: ``capri-lab report`` writes one page that opens anywhere, offline."""

from capri_lab.report.reader import Report, read_report

__all__ = ["Report", "read_report"]
