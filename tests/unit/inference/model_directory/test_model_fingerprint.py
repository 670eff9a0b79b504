"""A copied model has the same fingerprint; other weights, another tokenizer or adapter give it another one."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from inference.model_directory.model_fingerprint import directory_fingerprint, fingerprints
from settings import BUNDLED_MODEL


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return copytree(BUNDLED_MODEL, tmp_path / "copied")


def one_weight(model: Path) -> None:
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[len(weights) // 3] ^= 1
    (model / "model.safetensors").write_bytes(weights)


def one_merge(model: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    merges = tokenizer["model"]["merges"]
    merges[-1], merges[-2] = merges[-2], merges[-1]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))


def the_template(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")


def test_a_copy_of_a_model_has_its_fingerprint_under_any_name(copied: Path) -> None:
    here, there = fingerprints("a", str(BUNDLED_MODEL), {}), fingerprints("b", str(copied), {})
    assert list(here.values()) == list(there.values())


def test_what_is_written_for_people_does_not_count(copied: Path) -> None:
    (copied / "README.md").write_text("another text")
    assert directory_fingerprint(copied) == directory_fingerprint(BUNDLED_MODEL)


@pytest.mark.parametrize("change", [one_weight, one_merge, the_template], ids=lambda change: change.__name__)
def test_a_model_that_differs_has_another_fingerprint(copied: Path, change: Callable[[Path], None]) -> None:
    change(copied)
    assert directory_fingerprint(copied) != directory_fingerprint(BUNDLED_MODEL)


def test_an_adapter_differs_from_its_base_from_others_and_from_itself_on_another_base(copied: Path) -> None:
    adapters = {name: copied.parent / name for name in ("polite", "rude", "also polite")}
    for name, place in adapters.items():
        place.mkdir()
        (place / "adapter_config.json").write_text("{}")
        (place / "adapter_model.safetensors").write_bytes(b"rude" if name == "rude" else b"polite")
    own = fingerprints("base", str(copied), adapters)
    assert own["polite"] == own["also polite"]
    assert len(set(own.values())) == 3
    one_weight(copied)
    assert not {*own.values()} & {*fingerprints("base", str(copied), adapters).values()}


def test_weights_of_many_gigabytes_differ_if_any_long_stretch_of_them_does(tmp_path: Path) -> None:
    found = set()
    for changed_at in (None, 0, 5 * 2**30, 10 * 2**30 - 2**25):
        weights = tmp_path / "model.safetensors"
        with weights.open("wb") as written:
            written.truncate(10 * 2**30)  # takes no room on the disk
            if changed_at is not None:
                written.seek(changed_at)
                written.write(b"\1" * 2**25)
        found.add(directory_fingerprint(tmp_path))
    assert len(found) == 4


def test_a_model_that_is_not_here_has_none(tmp_path: Path) -> None:
    assert fingerprints("a", str(tmp_path / "no such directory"), {}) == {}
    assert fingerprints("a", "nobody/never-fetched", {}) == {}
