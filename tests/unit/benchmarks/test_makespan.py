"""Of several seeds the table shows the median of each figure, and the worst ratio."""

from pathlib import Path

from benchmarks.makespan import FIGURES, KINDS, SHARE_FIGURES, draw, medians


def test_each_kind_has_its_medians_and_its_worst_ratio(tmp_path: Path) -> None:
    kinds = [("mixed", "real", "paged", policy) for policy in ("fusion", "magnus")]
    alone = [
        dict(zip((*KINDS, *FIGURES), (*kind, 10.0 * seed, 9.0, 8.0 + seed, 1.0 + seed / 10), strict=True))
        for kind in kinds
        for seed in (3, 1, 2)
    ]
    behind = [
        dict(zip((*KINDS[2:], *SHARE_FIGURES), ("paged", "fusion", 5.0, 5.0 * n, float(n)), strict=True))
        for n in (1, 2)
    ]
    found, shares = medians(alone, KINDS, FIGURES), medians(behind, KINDS[2:], SHARE_FIGURES)
    assert [row["policy"] for row in found] == ["fusion", "magnus"]
    assert (found[0]["bulk_s"], found[0]["over_best"], found[0]["most"]) == (20.0, 1.2, 1.3)
    assert (shares[0]["over_alone"], shares[0]["most"]) == (1.5, 2.0)
    draw(found, shares, tmp_path / "makespan.svg")
    assert "aimed at" in (tmp_path / "makespan.svg").read_text()
