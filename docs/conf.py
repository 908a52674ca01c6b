"""The site: `make docs` builds it into build/docs, without the network. Its pages can be read in the repository, too.

The source folder is the whole repository (`sphinx-build -c docs . build/docs`): links between docs/, benchmarks/ and
the files at the top are then the same here as where the code is hosted.
"""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "everyrank"
author = "the authors of everyrank"
version = release = version_of("everyrank")

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "benchmarks/README.md", "boards/README.md", "examples/README.md"]

extensions = [
    "myst_parser",  # the pages are Markdown
    "sphinx.ext.autodoc",  # the reference is what the docstrings say
    "sphinx.ext.napoleon",  # some of them list their arguments
    "from_code",  # and so are laws, marks, fixtures and the run file: from_code.py beside this file
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_use_legacy_class_based = False
default_role = "literal"
smartquotes = False  # an option is --leaks, with two hyphens

html_theme = "furo"
html_title = "everyrank"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]  # the page at the top leads to that of the docs
