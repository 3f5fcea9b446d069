"""How the documentation is built: `make docs`, with warnings as errors."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.pages import write_pages  # noqa: E402
from docs.methods_table import class_list, options_table, table  # noqa: E402
from regrow import __version__  # noqa: E402
from regrow.engine.ops.base import lowerings  # noqa: E402

GENERATED = ROOT / "docs" / "_generated"
write_pages(GENERATED)
names = ", ".join(f"`{name}`" for name in lowerings())
(GENERATED / "operations.md").write_text(f"By their names in ATen: {names}.\n")
for page, content in {"method-classes": class_list, "method-options": options_table, "methods-table": table}.items():
    (GENERATED / f"{page}.md").write_text(content(), encoding="utf-8")

project = "regrow"
author = "The regrow developers"
copyright = "The regrow developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "_generated"]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

# Docstrings are written as people read them in an editor: single backticks are code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
toc_object_entries = False

html_theme = "furo"
html_title = f"regrow {release}"
html_static_path = ["_static"]
html_css_files = ["regrow.css"]
