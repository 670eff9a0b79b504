import ssl

from celery.app.defaults import DEFAULTS

from celery_config import celery_config

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


def test_a_broker_on_a_socket_or_behind_tls_is_named_as_kombu_wants_it():
    assert celery_config("unix:///run/r.sock", 0.1, "a")["broker_url"] == "redis+socket:///run/r.sock"
    assert CONFIG["broker_use_ssl"] is False
    assert celery_config("rediss://h/0", 0.1, "a")["broker_use_ssl"] == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
