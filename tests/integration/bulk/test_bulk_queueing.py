"""How the lines of batches come into the queue: gradually, in turns, as background work."""

from dataclasses import fields, replace

from openai import OpenAI
from sqlalchemy import text

from inference.engine_errors import TokenizerAway
from models.bulk.bulk_feed import taken_names
from protocol.limits.prompt_limits import PromptLimits
from tasks.chores.line_feeder import LINES_AT_ONCE, LineFeeder
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage, chat_line, counts, create, results
from tests.integration.database.query_plans import recorded_scans


def test_a_line_whose_own_deadline_is_nearer_keeps_it(client: OpenAI, bulk: BulkStage) -> None:
    create(client, [chat_line("near", magnus={"deadline_s": 60}), chat_line("far", magnus={"deadline_s": 864_000})])
    bulk.feed()
    ages = bulk.api.sql(
        "select extract(epoch from deadline_at - created_at)::int from requests, bulk_jobs order by deadline_at"
    )
    assert ages[0][0] <= 61
    assert ages[1][0] == 86_400


def test_taken_names_are_looked_up_one_by_one_however_many_lines_the_job_has(client: OpenAI, bulk: BulkStage) -> None:
    job = create(client, [chat_line("0")])
    names = [f"line-{n}" for n in range(19_900, 20_400)]
    with bulk.api.engine.connect() as connection:
        connection.execute(
            text("""
                insert into bulk_lines (job_id, line, custom_id, request_id)
                select :job, n, 'line-' || n, 'resp_' || n from generate_series(1, 20000) n
            """),
            {"job": job.id},
        )
        connection.execute(text("analyze bulk_lines"))
        with recorded_scans(connection) as recorded:
            assert taken_names(connection, job.id, names) == {f"line-{n}" for n in range(19_900, 20_001)}
        connection.rollback()
    assert max(scans.visited for scans in recorded) <= 2 * len(names)


def test_a_full_queue_lets_a_batch_in_gradually(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_requests=10)
    batch = create(client, [chat_line(str(n)) for n in range(23)])
    assert bulk.feed() == 5
    assert bulk.feed() == 0
    bulk.answer(3)
    assert bulk.feed() == 3
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done)) == ("completed", (23, 23, 0))
    assert len(results(client, done.output_file_id)) == 23


def test_reading_rests_while_others_are_served_once_a_step_s_lines_wait(client: OpenAI, bulk: BulkStage) -> None:
    lines = 3 * LINES_AT_ONCE
    create(client, [chat_line(str(n)) for n in range(lines)])
    client.responses.create(model=MODEL, input="eins", background=True)
    first = bulk.feed()
    assert LINES_AT_ONCE <= first + 1 < 2 * LINES_AT_ONCE  # a slow step ends sooner, and is followed by another
    bulk.api.sql("update requests set status = 'in_progress' where priority = 0")
    second = bulk.feed()
    assert 0 < second <= LINES_AT_ONCE
    bulk.api.sql("update requests set status = 'queued', predicted_tokens = 3 where priority = 0")
    assert bulk.feed() == lines - first - second


def test_what_is_set_for_a_tenant_bounds_its_batches(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_requests=10)
    api.sql("insert into tenants (name, queued_requests) select distinct tenant, 4 from api_keys")
    create(client, [chat_line(str(n)) for n in range(9)])
    assert bulk.feed() == 2


def test_batches_of_tenants_take_turns_and_a_full_queue_stops_only_its_tenant(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_requests=4)
    create(client, [chat_line(str(n)) for n in range(9)])
    with OpenAI(api_key=api.other_tenant().key, base_url=client.base_url, max_retries=0) as other:
        create(other, [chat_line("one")])
        bulk.feed()
    assert api.sql("select tenant, count(*) from requests group by tenant order by tenant") == [
        ("acme", 2),
        ("globex", 1),
    ]


def test_lines_are_background_work_with_the_priority_that_they_ask_for_among_each_other(
    client: OpenAI, bulk: BulkStage
) -> None:
    create(client, [chat_line("a"), chat_line("b", magnus={"priority": 7})])
    bulk.feed()
    assert bulk.api.sql("select tier, priority from requests order by priority") == [("flex", 0), ("flex", 7)]


def test_a_tokenizer_that_is_away_delays_lines_and_spoils_none(client: OpenAI, bulk: BulkStage, api: Api) -> None:
    class Away:
        name, detokenizer, vocabulary_size, template_variables, reads_clock = MODEL, None, None, None, False
        formats = None

        def encode_request(self, *_: object) -> list[int]:
            raise TokenizerAway("gone")

    create(client, [chat_line("a")])
    limits = replace(api.client.application.extensions["magnus"].prompt_limits, prompt_format=Away())
    feeder = LineFeeder(api.engine, lambda: limits, max_requests=100, max_tokens=1000, max_bytes=2**30)
    assert feeder.feed(5.0) == 0
    assert bulk.feed() == 1


class DeadlyLimits(PromptLimits):
    """Limits whose check of `max_tokens: 13` ends the process."""

    def output_limit(self, requested: int | None, *, param: str) -> int:
        """Ends the process for 13 tokens."""
        if requested == 13:
            raise SystemExit
        return super().output_limit(requested, param=param)


def test_a_line_that_ends_the_process_is_refused_by_name_and_delays_no_other_job(
    client: OpenAI, bulk: BulkStage
) -> None:
    deadly_lines = [chat_line(str(n), max_tokens=13 if n == 300 else 5) for n in range(700)]
    deadly = create(client, deadly_lines)
    other = create(client, [chat_line("a")])
    known: PromptLimits = bulk.api.client.application.extensions["magnus"].prompt_limits
    limits = DeadlyLimits(**{field.name: getattr(known, field.name) for field in fields(known)})
    ends = 0
    read_at: dict[str, int] = {}
    while (lines := bulk.api.sql("select id, next_line from bulk_jobs where next_line <= last_line")) and ends < 30:
        for job in {deadly.id, other.id} - {row.id for row in lines}:
            read_at.setdefault(job, ends)
        bulk.api.sql("update bulk_jobs set fed_at = clock_timestamp() where fed_at > clock_timestamp()")
        try:
            LineFeeder(bulk.api.engine, lambda: limits, max_requests=5000, max_tokens=10**6, max_bytes=2**30).feed(60.0)
        except SystemExit:
            ends += 1
    assert read_at[other.id] <= 2
    assert ends <= 15
    bulk.finish()
    done = client.batches.retrieve(deadly.id)
    assert counts(done) == (700, 699, 1)
    (error,) = results(client, done.error_file_id).values()
    assert error["error"]["code"] == "line_not_checked"
