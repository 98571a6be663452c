"""The documentation site: `make docs`."""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import execution  # noqa: E402

project = "pcv"
author = "The pcv developers"
copyright = author
version = release = version_of("pcv-bayes")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "cli",
    "docstrings",
    "execution",
    "mathml",
    "repository",
]
exclude_patterns = ["_build"]
nitpicky = True
# Annotations name types of other libraries, and docstrings in backticks also arguments and code;
# what begins with pcv. is there, but for modules that the reference leaves out.
nitpick_ignore_regex = [
    ("py:class", r"(?!pcv\.[A-Z]).*"),
    ("py:obj", r"(?!pcv\.(?!sampling\.accumulate\.)).*"),
]

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build/outputs" / execution.state())
nb_execution_timeout = 600  # seconds, of a page
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"

# The kernels of the tutorials find this checkout, whatever is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

html_theme = "pydata_sphinx_theme"
html_title = "pcv"
html_static_path = ["_static"]
html_css_files = ["pcv.css"]
html_context = {"default_mode": "light"}
html_show_sourcelink = False
html_sidebars = {"tasks": [], "limits": []}
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
}
