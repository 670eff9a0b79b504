"""A hook of mkdocs: the site shows README.md first, and has a copy of every file outside docs/ that a page links to.

A page that would load anything from another host fails the build. `llms.txt` lists the pages for language models.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)")
LOADED = re.compile(r"<(?:script|img|iframe)[^>]+src=[\"']?(?:https?:)?//|<link[^>]+href=[\"']?(?:https?:)?//")
FIRST = "README.md"
BEGINNING = re.compile(r"# (.+)\s+(?:\*\*\w+\.\*\* )?((?s:.+?)[.?])\s")  # a page's title and first sentence


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add README.md, and whatever it or any page links to, the pages among them with their own links."""
    found = {FIRST}
    unread = [FIRST, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    while unread:
        linked = {path for path in links_of(unread.pop()) if not path.startswith("docs/") and (ROOT / path).is_file()}
        unread += [path for path in linked - found if path.endswith(".md")]
        found |= linked
    for path in sorted(found):
        files.append(File.generated(config, site_path(path), content=(ROOT / path).read_bytes()))
    files.append(File.generated(config, "llms.txt", content=llms_index(config.nav)))
    return files


def llms_index(nav: list[dict[str, Any]]) -> str:
    """The pages of `nav` by section, each with its title and first sentence, in the format of https://llmstxt.org."""
    title, summary = beginning(FIRST)
    lines = [f"# {title}", "", f"> {summary}"]
    for section, pages in ((name, one) for entry in nav for name, one in entry.items()):
        lines += ["", f"## {section}", ""]
        for page in [pages] if isinstance(pages, str) else pages:
            address = re.sub(r"README\.md$", "index.md", page).removesuffix(".md") + ".html"
            title, sentence = beginning(in_repository(page))
            lines.append(f"- [{title}]({address}): {sentence}")
    return "\n".join(lines) + "\n"


def beginning(path: str) -> tuple[str, str]:
    """The title and the first sentence of a page, without its links."""
    found = BEGINNING.match((ROOT / path).read_text(encoding="utf-8"))
    if found is None:
        raise PluginError(f"{path} does not begin with a title and a sentence")
    return found[1], " ".join(re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", found[2]).split())


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where their files are on the site."""
    here = in_repository(page.file.src_uri)
    start = posixpath.dirname(page.file.src_uri)
    return LINK.sub(lambda link: f"]({posixpath.relpath(site_path(target(here, link[1])), start or '.')}", markdown)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads what other hosts have."""
    if LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} would load something from another host")
    return output


def links_of(path: str) -> set[str]:
    """Paths in the repository that a page links to."""
    return {target(path, link) for link in LINK.findall((ROOT / path).read_text(encoding="utf-8"))}


def target(page: str, link: str) -> str:
    """The path in the repository that a link of this page means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def site_path(path: str) -> str:
    """Where a file of the repository is among the site's sources; those whose names begin with a dot are left out."""
    if path == FIRST:
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path.lstrip('.')}"


def in_repository(source: str) -> str:
    """The other way round, for pages."""
    if source == "index.md":
        return FIRST
    return source.removeprefix("repository/") if source.startswith("repository/") else f"docs/{source}"
