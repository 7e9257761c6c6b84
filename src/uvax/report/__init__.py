"""Rows -> tables, figures, one self-contained page."""

from uvax.report.build import build, write_figures
from uvax.report.explorer import explorer_data
from uvax.report.sections import make_sections

__all__ = ["build", "explorer_data", "make_sections", "write_figures"]
