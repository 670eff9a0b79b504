"""Documents, comments and messages say what is there: every file, name, command and link that they show exists."""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest
import yaml

from cli.main import COMMANDS
from docs.site.repository_links import llms_index
from settings import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
GLOSSARY, EQUATIONS = ROOT / "docs" / "glossary.md", ROOT / "docs" / "equations.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
FOLDERS = "cli|webapp|tasks|protocol|processes|scheduling|learning|inference|models|migrations|benchmarks|docs|tests"
FILE = rf"(?:{FOLDERS})/[\w./-]*|settings\.py|celery_config\.py"

SOURCES = sorted(
    path
    for folder in (*FOLDERS.split("|"), "processes")
    for path in (ROOT / folder).rglob("*.py")
    if "/bundled/" not in str(path)
)
PRODUCT = [path for path in SOURCES if path.relative_to(ROOT).parts[0] not in ("tests", "benchmarks")]
CONSTANT = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
# A string or a comment of a module, f-strings included.
STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^\\]|\\[\s\S])*?"""|"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*'|\#[^\n]*'''
)
# What messages and comments of the product call by a name that is another program's: environment variables, WSGI keys.
NAMES_OF_OTHERS = {"WEB_CONCURRENCY", "PROMETHEUS_MULTIPROC_DIR", "MAX_CONTENT_LENGTH", "TOOL_CALLS"}

MADE_UP = {"docs/results/live/TABLE.json", "docs/results/f.json"}  # a placeholder, and an argument of a test

every_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)).replace("/", "-")
)


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines at its top level, and `Class.member` of its classes."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        names |= defined_by(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{member}" for inner in node.body for member in defined_by(inner)}
    return frozenset(names)


def defined_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def missing(text: str) -> list[str]:
    """References `path` and `path.py:Name` in backticks that lead nowhere."""
    return [
        f"{path}:{name}" if name else path
        for path, name in re.findall(rf"`({FILE})(?::([\w.]+))?`", text)
        if not (ROOT / path).exists() or (name and name not in names_in(ROOT / path))
    ]


def rows_of(text: str) -> list[list[str]]:
    """The cells of every table row below a header."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@every_document
def test_every_file_and_every_name_that_is_shown_exists(document: Path) -> None:
    assert missing(document.read_text()) == []


def test_a_reference_that_leads_nowhere_is_found() -> None:
    text = "`settings.py`, `settings.py:Settings.policy`, `settings.py:Gone`, `docs/gone.md`, `cli/main.py:main`"
    assert missing(text) == ["settings.py:Gone", "docs/gone.md"]


@cache
def prose_of(path: Path) -> str:
    """The comments of a module, and those of its strings that are more than one word: docstrings and messages."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return "\n".join(
        token.string
        for token in tokens
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string)
    )


def missing_in_prose(text: str) -> list[str]:
    """Files `path` and names `path.py:Name` of a comment or a message that do not exist."""
    shown = rf"(?<![\w/.*{{}}])((?:{FOLDERS})/[\w./-]+\.(?:py|md|json|svg|yaml|conf)|settings\.py)(?::(\w[\w.]*\w))?"
    return [
        f"{path}{name and ':' + name}"
        for path, name in re.findall(shown, text)
        if not (ROOT / path).exists() or (name and not name.isdigit() and name not in names_in(ROOT / path))
    ]


def test_comments_and_messages_show_only_files_and_names_that_exist() -> None:
    wrong = [
        f"{source.relative_to(ROOT)}: {shown}"
        for source in SOURCES
        if source != Path(__file__) and missing_in_prose(source.read_text())  # few are tokenized, which takes long
        for shown in missing_in_prose(prose_of(source))
        if shown not in MADE_UP
    ]
    assert wrong == []


def test_a_comment_that_names_a_file_that_is_gone_is_found() -> None:
    assert missing_in_prose("as `cli/hosting/gone.py` and cli/main.py:nothing do") == [
        "cli/hosting/gone.py",
        "cli/main.py:nothing",
    ]


def test_a_constant_that_a_comment_or_a_message_names_is_defined() -> None:
    code = (STRING_OR_COMMENT.sub("", source.read_text()) for source in SOURCES)
    defined = {name for text in code for name in CONSTANT.findall(text)}
    wrong = [
        f"{source.relative_to(ROOT)}: {name}"
        for source in PRODUCT
        for name in CONSTANT.findall(prose_of(source))
        if not name.startswith("MAGNUS_") and name not in defined | NAMES_OF_OTHERS
    ]
    assert wrong == []


@every_document
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@every_document
def test_every_command_that_is_shown_is_a_command(document: Path) -> None:
    shown = re.findall(r"(?:`|\$ |bin/)magnus ([a-z]+)", document.read_text())
    assert set(shown) <= set(COMMANDS)


@every_document
def test_every_setting_that_is_shown_is_a_setting(document: Path) -> None:
    names = {f"MAGNUS_{name.upper()}" for name in Settings.model_fields}
    shown = set(re.findall(r"MAGNUS_[A-Z_]*[A-Z]", document.read_text().partition("| settings that are gone |")[0]))
    assert shown <= names


@every_document
def test_every_make_target_that_is_shown_is_a_target(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = re.findall(r"(?:`|\$ )make ([a-z]+)", document.read_text())
    assert set(shown) <= targets


def test_every_log_line_that_operators_should_watch_is_written() -> None:
    watch = (ROOT / "docs" / "operations" / "watch.md").read_text()
    watched = re.findall(r"`([a-z ]+)`", watch.partition("Lines worth an alarm:")[2].partition(".")[0])
    code = "\n".join(source.read_text() for source in PRODUCT)
    written = re.findall(r'log\.\w+\(\s*"([^"]+)"', code) + [
        f"{name} failed" for name in re.findall(r'Loop\(\s*"([^"]+)"', code)
    ]
    assert len(watched) > 5
    assert [line for line in watched if line not in written] == []


def test_the_sites_llms_txt_lists_every_page_of_its_menu_with_a_sentence() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = [page for entry in nav for one in entry.values() for page in ([one] if isinstance(one, str) else one)]
    listed = re.findall(r"^- \[.+\]\((\S+)\.html\): .{20,300}[.?]$", llms_index(nav), re.MULTILINE)
    assert listed == [page.replace("README.md", "index.md").removesuffix(".md") for page in pages]


def test_the_glossary_explains_each_term_once_in_order_and_says_where_it_lives() -> None:
    rows = rows_of(GLOSSARY.read_text().partition("\n## ")[0])
    terms = [term.casefold() for term, _, _ in rows]
    assert terms == sorted(set(terms))
    assert [term for term, _, where in rows if not re.search(rf"`(?:{FILE})(?::[\w.]+)?`", where)] == []


def test_every_equation_names_its_code() -> None:
    rows = rows_of(EQUATIONS.read_text())
    unanswered = [
        row[0] for row in rows if not re.search(rf"`(?:{FILE})|\bnot (?:implemented|measured)", " ".join(row))
    ]
    assert rows
    assert unanswered == []


@pytest.mark.parametrize("record", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_a_context_consequences_and_its_place_in_the_index(record: Path) -> None:
    text = record.read_text()
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert 15 <= len(text.splitlines()) <= 40
    assert f"]({record.name})" in (record.parent / "README.md").read_text()
