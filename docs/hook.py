"""Takes into the site what lies outside of docs/: README.md as its first page, contrib/, and what a page links to.

mkdocs loads it (mkdocs.yml). Pages link to such files as they must in the repository, `../ARCHITECTURE.md`. In the site
docs/ is the root, and these files lie beside the pages. Files of code are shown as pages. A link into a folder of
contrib/ that was taken away leads to the list of them. Any other link to nothing stays, so that mkdocs refuses it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
CONTRIB = ["contrib/README.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("contrib/*/*.md"))]
"""The list of the outbuildings, and the pages of those that are here."""
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(#[^)\s]*)?(?=\))")
"""The target of a Markdown link within the repository, and its anchor."""


def place(path: str) -> str:
    """Return where the site has a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    return path if path.endswith((".md", ".png")) else f"{path}.md"


def target(path: str, link: str) -> str:
    """Return the path in the repository that a link of the file `path` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def rewritten(path: str, text: str) -> str:
    """Return a page with its links as the site has them."""

    def replace(match: re.Match[str]) -> str:
        to, anchor = target(path, match[1]), match[2] or ""
        if to.startswith("contrib/") and not (ROOT / "/".join(to.split("/")[:2])).exists():
            to, anchor = CONTRIB[0], ""
        if not (ROOT / to).exists():
            return match[0]
        return posixpath.relpath(place(to), posixpath.dirname(place(path)) or ".") + anchor

    return LINK.sub(replace, text)


def on_config(config: Any) -> Any:
    config.nav.insert(-2, {"Outbuildings": CONTRIB})  # before the API
    return config


def on_files(files: Files, config: Any) -> Files:
    pages = {file.src_uri: f"docs/{file.src_uri}" for file in files.documentation_pages()}
    waiting, seen = ["README.md", *CONTRIB, *pages.values()], set[str]()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        file = ROOT / path
        if path.startswith("docs/") and not path.endswith(".md"):
            continue
        if file.suffix == ".png":
            files.append(File.generated(config, place(path), abs_src_path=str(file)))
            continue
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".md":
            language = {".py": "python", ".yaml": "yaml"}.get(file.suffix, "text")
            text = f"# {path}\n\n````{language}\n{text}\n````\n"
        elif links := dict.fromkeys(target(path, link) for link, _ in LINK.findall(text)):
            waiting += [link for link in links if link not in seen and link not in waiting and (ROOT / link).is_file()]
        if not path.startswith("docs/"):
            files.append(File.generated(config, place(path), content=rewritten(path, text)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return markdown if page.file.generated_by else rewritten(f"docs/{page.file.src_uri}", markdown)
