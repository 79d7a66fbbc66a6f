"""Hooks of the documentation site: pages of the top folder, outside links, the search offline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
_FETCHED = "https://unpkg.com/iframe-worker/shim"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the README as the first page, and the other pages of the top folder."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        page = "index.md" if name == "README.md" else name
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replaces links to files outside of docs/, such as examples, by their text."""

    def without_outside(match: re.Match[str]) -> str:
        return match[1] if match[2].startswith("../") else match[0]

    return _LINK.sub(without_outside, markdown)


def on_post_build(config: Any) -> None:
    """Replaces the script that Material for MkDocs fetches for the search from a folder by ours."""
    site = Path(config.site_dir)
    for page in site.rglob("*.html"):
        up = "../" * (len(page.relative_to(site).parts) - 1)
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(_FETCHED, f"{up}site/file_worker.js"), encoding="utf-8")
