"""Hook of the build: the README as a package index shows it, without this folder around it.

Its links are made absolute, below `Source` of [project.urls] in pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Sets the package's long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, metadata["urls"]["Source"]),
        }


def with_absolute_links(text: str, source: str) -> str:
    """Returns Markdown whose links to files lead to them in the repository at `source`."""
    return _RELATIVE.sub(lambda link: f"]({source}/blob/main/{link[1]})", text)
