"""A service at work, as pages show it: workers with batches, a queue, answers of several applications, versions."""

import json

from models.connections.session import make_sessions
from models.operations.service_history import take_samples
from tests.browser.site import Site

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
ANSWERS, WAITING = 60, 9


def fill(site: Site, word: str = "") -> None:
    """Make a busy service; `word` stands wherever a client may write a word."""
    stage = site.stage
    applications = [f"{name}{word}" for name in ("translation", "code comments", "chat")]
    for n in range(ANSWERS):
        application = applications[n % 3]
        site.answer(
            n,
            application=application,
            tenant=f"acme{word}",
            instructions=f"Translate.{word}",
            predicted_tokens=8 + n % 9,
            predicted_upper_tokens=12 + n % 9,
            predictor_version="length-2",
            body={"metadata": {f"team{word}": f"red{word}"}, "background": True, "stop": [], "sampling": {}},
        )
    for name in ("gpu-0", f"gpu-1{word}"):
        stage.worker(name, kv_tokens=4000)
        stage.sql(
            """update workers set facts = jsonb_set(facts, '{version}', '"1.0.0"'),
                started_at = started_at - interval '1 h' where name = :name""",
            name=name,
        )
        stage.sql(
            """insert into batches (worker, policy, status, joins, size, length, predicted_generation_length,
                estimated_s, serving_s, valid_tokens, started_at, finished_at)
            select :name, 'magnus', case when n = 5 then 'out_of_memory' else 'finished' end, false, 4, 30, 20, 8, 9,
                80 + n, clock_timestamp() - make_interval(secs => 20 * n),
                clock_timestamp() - make_interval(secs => 20 * n - 11)
            from generate_series(2, 20) as n""",
            name=name,
        )
        (running,) = stage.sql(
            """insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s,
                started_at, progress_tokens, lease_until)
            values (:name, 'magnus', 'running', 4, 33, 80, 3.0, clock_timestamp() - interval '4 s', 6,
                clock_timestamp() + interval '1 h') returning id""",
            name=name,
        )[0]
        for n in range(4):
            made = stage.request(f"resp_{hash_of(name, n)}", application=applications[n % 3], tenant=f"acme{word}")
            stage.sql(
                """update requests set status = 'in_progress', batch_id = :batch, attempts = 1,
                    started_at = clock_timestamp() where id = :id""",
                batch=running,
                id=made,
            )
    stage.sql(
        """update requests set batch_id = (select max(id) from batches where status = 'finished' and worker = 'gpu-0')
        where status = 'completed'"""
    )
    failed = stage.request(f"resp_{'f' * 32}", application=applications[0], tenant=f"acme{word}")
    stage.sql(
        """update requests set status = 'failed', error = cast(:error as jsonb), finished_at = clock_timestamp()
        where id = :id""",
        id=failed,
        error=json.dumps({"code": f"out_of_memory{word}", "message": f"too long{word}"}),
    )
    waiting = [
        stage.request(
            f"resp_{n:x}{'e' * 31}", planner_epoch=1, application=applications[n % 3], tenant=f"acme{word}", input="a b"
        )
        for n in range(WAITING)
    ]
    stage.sql("update requests set arrived_at = clock_timestamp() - interval '12 s' where status = 'queued'")
    of_batches = [waiting[:4], waiting[4:7], waiting[7:]]
    site.planner(
        requests=WAITING,
        backlog_s=4.0,
        batches=[
            {
                "ids": ids,
                "model": "small",
                "size": len(ids),
                "length": 20 + n,
                "generation_length": 30 + n,
                "estimated_s": 2.0 + n,
                "response_ratio": 7.0 - n,
                "sealed": n == 2,
                "starts_in_s": 1.0 + n,
                "memory_share": 0.2 + n / 10,
                "waited_s": 12.0,
                "wasted": 100 * n,
            }
            for n, ids in enumerate(of_batches)
        ],
    )
    for kind in ("length", "serving_time"):
        for n in (1, 2):
            stage.sql(
                """insert into model_versions (kind, version, active, sha256, stored, scores, data)
                values (:kind, :version, :active, '', '', cast(:scores as jsonb),
                    '{"training": 100, "held_out": 20}')""",
                kind=kind,
                version=f"{kind}-{n}{word if n == 1 else ''}",
                active=n == 2,
                scores=json.dumps({"candidate": {"rmse": 4.5, "tau": 0.7}}),
            )
    stage.sql(
        """insert into service_state (name, value) values ('prediction', cast(:value as jsonb))""",
        value=json.dumps({"n": 60, "tau": 0.61, "applications": {}}),
    )
    for kind in ("beat", "planner", "predictor", "chores", "trainer"):
        stage.sql(
            "insert into process_heartbeats (kind, instance, clock_ahead_s) values (:kind, 'host:1', 0)", kind=kind
        )
    stage.sql(
        """insert into webhook_endpoints (id, tenant, url, events, secret, failures)
        values ('we_1', :tenant, :url, '{response.completed}', '', 3)""",
        tenant=f"acme{word}",
        url=f"https://example.com/{word}",
    )
    stage.sql(
        """insert into webhook_deliveries (endpoint_id, event_id, type, object_id, attempts, next_attempt_at,
            last_status, last_error)
        select 'we_1', 'evt_' || n, 'response.completed', 'resp_' || lpad(to_hex(n), 32, '0'), 9, null, 500, :error
        from generate_series(1, 3) as n""",
        error=f"refused{word}",
    )
    stage.sql(
        """insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, status, lines, last_line,
            completed, failed, expires_at)
        values ('batch_' || repeat('b', 32), :tenant, '/v1/chat/completions', 'file-1', '24h', 'in_progress', 50000,
            50000, 20000, 2, now() + interval '1 day')""",
        tenant=f"acme{word}",
    )
    stage.sql(
        """insert into bulk_lines (job_id, line, custom_id, error)
        select 'batch_' || repeat('b', 32), n, :name || n, cast(:error as jsonb) from generate_series(7, 8) n""",
        name=f"row{word}",
        error=json.dumps({"code": "missing", "param": "model", "message": f"Missing{word}"}),
    )
    stage.sql(
        """insert into usage_days (day, tenant, model, requests, prompt_tokens, answer_tokens, gpu_s)
        values (current_date, :tenant, 'small', 60, 600, 720, 12.5)""",
        tenant=f"acme{word}",
    )
    stage.sql(
        """insert into promise_hours
        select date_trunc('hour', now()), :tenant, 'small', tier, probability, 100, 88, 4, 5, 1, 1
        from unnest(array['default', 'priority']) as tier, unnest(array[0.5, 0.9, 0.95]) as probability""",
        tenant=f"acme{word}",
    )
    stage.sql(
        """insert into audit_entries (actor, action, target, details)
        values (:who, 'pause', 'planning', cast(:details as jsonb))""",
        who=f"me{word}",
        details=json.dumps({f"why{word}": word}),
    )
    # so that nobody counts as silent, however slow the machine is
    for table, column in (
        ("workers", "heartbeat_at"),
        ("process_heartbeats", "heartbeat_at"),
        ("service_state", "updated_at"),
    ):
        stage.sql(f"update {table} set {column} = clock_timestamp() + interval '5 min'")
    with make_sessions(stage.database)() as session:
        take_samples(session)


def hash_of(name: str, n: int) -> str:
    """Returns 32 hex digits that no other name and number get."""
    return f"{sum(map(ord, name)):04x}{n:028x}"
