"""The tools of docs/clients.md: what each is installed with, and what is run of it, as the document says."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "clients.md"
ENVIRONMENTS = ROOT / ".magnus" / "clients"  # one folder each; `make clean` deletes them
BLOCK = re.compile(r"^```(\w+) (install|run)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of a document that is meant to be run, and its language."""

    language: str
    text: str

    def command(self, python: Path, node: str) -> list[str]:
        """The command line that runs the block."""
        if self.language == "python":
            return [str(python), "-c", self.text]
        if self.language == "js":
            return [node, "--input-type=module", "--eval", self.text]
        return ["bash", "-euo", "pipefail", "-c", self.text]


@dataclass(frozen=True)
class DocumentedClient:
    """One section of the document."""

    name: str
    install: str
    run: Block

    @property
    def directory(self) -> Path:
        """The directory in which the client is installed."""
        return ENVIRONMENTS / re.sub(r"\W+", "-", self.name)


def blocks_of(document: str) -> dict[str, list[Block]]:
    """The blocks of a document that install the client or are run, by purpose."""
    found: dict[str, list[Block]] = {"install": [], "run": []}
    for language, purpose, text in BLOCK.findall(document):
        found[purpose].append(Block(language, text))
    return found


def documented_clients() -> list[DocumentedClient]:
    """All sections that install something."""
    clients = []
    for section in DOCUMENT.read_text().split("\n## ")[1:]:
        blocks = blocks_of(section)
        (install,), (run,) = blocks["install"], blocks["run"]
        clients.append(DocumentedClient(section.partition("\n")[0], install.text.strip(), run))
    return clients
