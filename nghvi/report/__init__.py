"""One self-contained HTML page about a fitted estimator."""

from nghvi.report.page import write_report as write_report
