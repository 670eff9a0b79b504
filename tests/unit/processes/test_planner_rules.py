from processes.planner_rules import planner_rules
from setting_parameters import Parameters
from settings import Settings


def test_a_worker_counts_as_dead_before_its_leases_expire_and_after_several_missed_heartbeats() -> None:
    rules = planner_rules(Settings(lease_s=10.0, heartbeat_s=0.5))
    assert (rules.on_time_s, rules.alive_s, rules.lease_s) == (2.0, 4.0, 10.0)
    assert planner_rules(Settings(lease_s=3.0, heartbeat_s=0.5)).alive_s == 3.0


def test_fusions_order_favours_what_the_parameters_name() -> None:
    assert planner_rules(Settings()).settings.favour == "mean"
    assert planner_rules(Settings(parameters=Parameters(favour="goodput"))).settings.favour == "goodput"


def test_one_switch_gives_magnus_the_papers_threshold_and_reservation_unless_a_threshold_is_set() -> None:
    chosen, published = planner_rules(Settings()), planner_rules(Settings(parameters=Parameters(magnus="published")))
    assert (chosen.settings.wma_threshold, chosen.settings.reserves_upper) == (None, True)
    assert (published.settings.wma_threshold, published.settings.reserves_upper) == (50_000, False)
    assert (
        planner_rules(Settings(parameters=Parameters(magnus="published", wma_threshold=0))).settings.wma_threshold == 0
    )
