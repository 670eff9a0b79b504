"""The lab plays served requests again: the figures add up by hand, and time bounds it."""

import itertools

import pytest

from scheduling.rank_correlation import RankCorrelation
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, UnknownPolicy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.policy_lab import (
    AnswerTimes,
    LabFigures,
    Overheads,
    ServedWork,
    advise,
    calibrate,
    figures_of,
    play,
    policies_to_play,
)
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival
from tests.unit.scheduling.scheduling_builders import FLAT, a_memory, a_request

SETTINGS = PolicySettings(max_prompt_tokens=100, max_output_tokens=100)


NONE = Overheads()


def served(*arrivals: Arrival, counted: list[str] | None = None, took: AnswerTimes | None = None) -> ServedWork:
    ids = [arrival.request.id for arrival in arrivals] if counted is None else counted
    fleet = [Instance("w", a_memory(10_000))]
    return ServedWork(
        arrivals,
        dict.fromkeys(ids, took or AnswerTimes(0, 0, 1, 1, 0.4)),
        fleet,
        EngineCosts(FLAT),
        RankCorrelation(),
        {},
    )


def one(id: str, at: float = 0.0, tokens: int = 10) -> Arrival:
    return Arrival(a_request(id, at, length=10, predicted=tokens), tokens)


def test_a_lone_request_takes_its_prefill_and_its_iterations() -> None:
    figures = play("vs", served(one("a")), SETTINGS, NONE, lambda: True)
    # prefill 10 tokens x 1 ms, then 10 iterations of 100 ms
    assert (figures.answered, figures.unanswered) == (1, 0)
    assert [figures.mean_s, figures.p50_s, figures.p99_s] == pytest.approx([1.01] * 3)
    assert figures.requests_per_s == pytest.approx(1 / 1.01)


def test_what_ran_before_the_window_is_served_and_not_counted() -> None:
    figures = play("vs", served(one("before"), one("a", at=0.5), counted=["a"]), SETTINGS, NONE, lambda: True)
    # it waits until 1.01 s for the batch before it, then takes as long
    assert figures.answered == 1
    assert figures.mean_s == pytest.approx(2.02 - 0.5)


def test_overheads_make_service_longer_and_later() -> None:
    figures = play("vs", served(one("a")), SETTINGS, Overheads(slowdown=2.0, delay_s=0.5), lambda: True)
    # half a second until it can be served, then twice 1.01 s
    assert figures.mean_s == pytest.approx(0.5 + 2.02)


def test_overheads_are_found_by_what_requests_waited_and_took() -> None:
    took = AnswerTimes(arrived_at=0.0, started_at=0.3, finished_at=3.33, tokens=10, alone_s=1.01)
    work = served(one("a"), one("b", at=100.0), one("c", at=200.0), took=took)
    found = calibrate("vs", work, SETTINGS, lambda: True)
    assert [found.slowdown, found.delay_s] == pytest.approx([3.0, 0.3])
    assert play("vs", work, SETTINGS, found, lambda: True).mean_s == pytest.approx(3.33)


def test_a_service_as_fast_as_its_engines_has_no_overheads() -> None:
    took = AnswerTimes(arrived_at=0.0, started_at=0.0, finished_at=1.01, tokens=10, alone_s=1.01)
    found = calibrate("vs", served(one("a"), took=took), SETTINGS, lambda: True)
    assert [found.slowdown, found.delay_s] == pytest.approx([1.0, 0.0])


def test_without_time_nothing_is_calibrated() -> None:
    assert calibrate("vs", served(one("a")), SETTINGS, lambda: False) == NONE


def test_what_is_not_played_in_time_is_said() -> None:
    steps = itertools.count()
    figures = play("vs", served(one("a"), one("b", at=50.0)), SETTINGS, NONE, lambda: next(steps) < 3)
    assert (figures.answered, figures.unanswered) == (1, 1)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_answers_everything(policy: str) -> None:
    work = served(*(one(f"r{number}", at=number / 10, tokens=5 + number) for number in range(20)))
    assert play(policy, work, SETTINGS, NONE, lambda: True).answered == 20


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(UnknownPolicy):
        play("fastest", served(one("a")), SETTINGS, NONE, lambda: True)


def test_figures_of_nothing_are_zero() -> None:
    assert figures_of([], 3) == LabFigures(0, 3, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_figures_are_from_the_first_arrival_to_the_last_answer() -> None:
    # 3 answers in 10 s after 2, 4 and 9 s, of which they waited 1, 2 and 3 s
    answers = [(0.0, 1.0, 2.0, 5, 0.4), (1.0, 3.0, 5.0, 9, 0.7), (1.0, 4.0, 10.0, 7, 2.0)]
    figures = figures_of([AnswerTimes(*one) for one in answers], 3)
    assert [figures.requests_per_s, figures.mean_s, figures.p50_s] == pytest.approx([0.3, 5.0, 4.0])
    assert figures.waited_s == pytest.approx(2.0)
    assert figures.goodput == pytest.approx(2 / 3)  # within 5 times 0.4, 0.7 and 2 s: the first and the last
    # by length: 2, 9 and 4 s, of which the middle one is in both halves
    assert [figures.short_s, figures.long_s] == pytest.approx([5.5, 6.5])


def figures(mean_s: float, waited_s: float, short_s: float, long_s: float, answered: int = 100) -> LabFigures:
    return LabFigures(answered, 100 - answered, 1.0, mean_s, mean_s, mean_s, 1.0, waited_s, short_s, long_s)


NOW = figures(10.0, waited_s=6.0, short_s=8.0, long_s=12.0)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (figures(8.0, waited_s=4.0, short_s=4.0, long_s=12.0), "short requests waited behind long ones"),
        (figures(8.0, waited_s=4.0, short_s=3.0, long_s=13.0), "short requests waited behind long ones"),
        (figures(8.0, waited_s=4.0, short_s=6.0, long_s=10.0), "requests waited though workers had room"),
        (figures(8.0, waited_s=5.5, short_s=6.0, long_s=10.0), "answers were held up by others in their batches"),
    ],
)
def test_the_advice_says_by_how_much_another_policy_is_faster_and_why(other: LabFigures, why: str) -> None:
    said = advise("vs", figures(9.0, 6.0, 8.0, 10.0), {"vs": NOW, "fusion": other})
    assert (said.best, said.why) == ("fusion", why)
    assert [said.gain, said.error] == pytest.approx([0.2, 1 / 9])


def test_the_policy_in_force_stays_the_best_if_no_other_is_faster_or_the_faster_ones_answer_less() -> None:
    less = figures(5.0, 1.0, 5.0, 5.0, answered=90)
    said = advise("vs", NOW, {"fusion": NOW, "vs": NOW, "scls": less})
    assert (said.best, said.gain, said.error) == ("vs", 0.0, 0.0)


def test_the_policy_of_a_quantized_model_is_played_only_where_it_is_in_force() -> None:
    assert set(POLICIES) - set(policies_to_play("fusion")) == {"vsq"}
    assert policies_to_play("vsq") == list(POLICIES)
