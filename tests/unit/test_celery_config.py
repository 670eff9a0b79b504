import ssl

from celery.app.defaults import DEFAULTS
from kombu.utils.imports import symbol_by_name

from celery_config import celery_config, gpu_queue
from tasks.beat_scheduler import TickScheduler

CONFIG = celery_config("redis://localhost:1/0", tick_s=0.1, installation="test")


def test_no_tick_expires_by_a_clock_that_another_host_may_have_set_differently():
    assert set(CONFIG["beat_schedule"]) == {"plan", "predict", "upkeep"}
    assert not any("options" in tick for tick in CONFIG["beat_schedule"].values())


def test_outcomes_are_rows_and_messages_are_json():
    assert CONFIG["result_backend"] is None
    assert CONFIG["accept_content"] == [CONFIG["task_serializer"]] == ["json"]


def test_a_frozen_broker_blocks_nobody_for_long():
    timeouts = CONFIG["broker_transport_options"]
    assert timeouts["socket_timeout"] <= 2.0
    assert timeouts["socket_connect_timeout"] <= 2.0
    assert CONFIG["task_publish_retry"] is False


def test_every_setting_is_one_that_celery_knows():
    assert set(CONFIG) - set(DEFAULTS) == set()


def test_beats_scheduler_is_found_under_the_name_that_celery_is_given():
    assert symbol_by_name(CONFIG["beat_scheduler"]) is TickScheduler


def test_each_worker_has_a_queue_of_its_own():
    assert gpu_queue("a") != gpu_queue("b")


def test_a_broker_on_a_socket_or_behind_tls_is_named_as_kombu_wants_it():
    assert celery_config("unix:///run/r.sock", 0.1, "a")["broker_url"] == "redis+socket:///run/r.sock"
    assert CONFIG["broker_use_ssl"] is False
    assert celery_config("rediss://h/0", 0.1, "a")["broker_use_ssl"] == {"ssl_cert_reqs": ssl.CERT_REQUIRED}


def test_two_installations_have_no_key_in_common():
    prefixes = {
        celery_config("redis://h/0", 0.1, name)["broker_transport_options"]["global_keyprefix"] for name in ("a", "b")
    }
    assert len(prefixes) == 2
