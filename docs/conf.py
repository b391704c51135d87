"""Settings of the documentation site (``make docs``)."""

import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import nghvi

project = "nghvi"
author = "the nghvi authors"
project_copyright = "2026, the nghvi authors. MIT licence"
release = version = nghvi.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

html_theme = "furo"
html_title = "nghvi"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "tango"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_use_param = False
napoleon_use_ivar = False
napoleon_attr_annotations = False
smartquotes = False


def _of_scikit_learn(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out what estimators inherit: scikit-learn's own pages describe it."""
    request = name.startswith("set_") and name.endswith("_request")
    inherited = str(getattr(member, "__module__", "")).startswith("sklearn.")
    return True if request or inherited else None


def _of_named_tuples(
    app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]
) -> None:
    """Fields without a word of their own say nothing, rather than which number they are."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _of_named_tuples)
    app.connect("autodoc-skip-member", _of_scikit_learn)
