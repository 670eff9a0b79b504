"""The first request of a fresh service gets an ETA without an interval, and the job's page says that none is known."""

from datetime import UTC, datetime

from models.planning.queue_snapshot import QueueSnapshot, WaitingQueue, write_queue_snapshot
from scheduling.forecast.expectations import FEWEST
from settings import Settings
from tests.integration.api_service import Api
from webapp.app import create_app


def test_no_interval_is_given_before_enough_errors_of_etas_are_known(api: Api, web_settings: Settings) -> None:
    with api.engine.begin() as connection:
        write_queue_snapshot(
            connection, QueueSnapshot(at=datetime.now(UTC), queue=WaitingQueue(backlog_s=3.0, served_s=0.5))
        )
    first = api.submit()
    magnus = first["magnus"]
    assert 3.0 <= magnus["eta_s"] <= 4.0
    assert (magnus["eta_low_s"], magnus["eta_high_s"]) == (None, None)
    assert web_settings.dashboard_password is not None
    signed_in = ("magnus", web_settings.dashboard_password.get_secret_value())
    page = api.client.get(f"/jobs/{first['id']}", auth=signed_in).get_data(as_text=True)
    assert "an interval is not known yet" in page
    api.sql(
        """insert into requests (id, tenant, application, instructions, input, input_tokens, prompt_tokens,
            limit_tokens, model, body, status, output_text, output_tokens, arrived_at, finished_at, eta)
        select 'e' || n, tenant, application, '', input, input_tokens, prompt_tokens, limit_tokens, model, body,
            'completed', 'x', 1, arrived_at, arrived_at + interval '2 s' + n * interval '10 ms', eta
        from requests, generate_series(1, :fewest) as n where id = :id""",
        fewest=FEWEST,
        id=first["id"],
    )
    app = create_app(web_settings)  # a process that knows these errors
    told = Api(app.test_client(), api.engine, api.key).submit()["magnus"]
    assert told["eta_low_s"] < told["eta_s"] < told["eta_high_s"]
    app.extensions["magnus"].close()
