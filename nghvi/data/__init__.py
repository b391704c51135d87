"""Grouped data as arrays, and how data frames and files are turned into them."""

from nghvi.data.grouped import Moments as Moments
from nghvi.data.grouped import Rows as Rows
from nghvi.data.linear import LinearStatistics as LinearStatistics
from nghvi.data.panel import Panel as Panel
