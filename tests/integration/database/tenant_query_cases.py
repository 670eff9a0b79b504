"""The cases of `models.tenants` and `models.webhooks`, as `query_cases` has those of the other modules."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from models.connections.sql import text
from models.tenants import api_keys, budgets, tenant_limits, usage
from models.upkeep import tenant_removal
from models.webhooks import webhook_deliveries, webhook_endpoints
from models.webhooks.webhook_deliveries import ClaimedDelivery, DeliveryResult
from models.webhooks.webhook_endpoints import EVENT_TYPES
from tests.integration.database.full_database import ENTRIES, QUEUED, USING
from tests.integration.database.query_cases import DAY, FEW, HOUR, Case, on_session

LAST_MONTH = datetime.now(UTC).date() - timedelta(29), datetime.now(UTC).date()


def claim_deliveries(connection: Connection) -> list[ClaimedDelivery]:
    return webhook_deliveries.claim(connection, 20, {"we_1": 1}, each=16, each_failing=1, each_tenant=64, claim_s=60.0)


def deliver(connection: Connection) -> None:
    results = [
        DeliveryResult(one.id, one.endpoint_id, one.attempts, 500, "no", 5.0) for one in claim_deliveries(connection)
    ]
    webhook_deliveries.write_results(connection, results, DAY)


def on_part(table: str) -> Callable[[Connection], int]:
    return lambda connection: tenant_removal.delete_some(connection, "tenant-1", table)


def spent_beside_jobs(connection: Connection) -> None:
    """Reads the spent budgets while each of a hundred unended bulk jobs has one."""
    given = """update bulk_jobs set status = 'in_progress', budget = '{"gpu_s": 9}' where id < 'batch_' || :end"""
    connection.execute(text(given), {"end": f"{100:032x}"})
    budgets.spent(connection, {})


TENANT_CASES = [
    Case("tenant_limits.may_prefer", on_session(tenant_limits.may_prefer, "tenant-0", 10)),
    Case("tenant_limits.check_work", on_session(tenant_limits.check_work, "tenant-0", "small", 10), 2_000),
    Case("tenant_limits.token_gpu_s", on_session(tenant_limits.token_gpu_s, "tenant-0", "small")),
    Case("tenant_limits.has_preference_left", on_session(tenant_limits.has_preference_left, "tenant-0", 10)),
    Case("tenant_limits.change_tenant", on_session(tenant_limits.change_tenant, "tenant-0", {"weight": 2.0})),
    Case("tenant_limits.check_alone", on_session(tenant_limits.check_alone, "tenant-0", "files")),
    Case("tenant_limits.limits_of", on_session(tenant_limits.limits_of, "tenant-0")),
    Case("tenant_limits.list_tenants", on_session(tenant_limits.list_tenants), 2 * FEW),
    Case("tenant_removal.holdings", on_session(tenant_removal.holdings, "nobody")),
    Case("tenant_removal.begin", on_session(tenant_removal.begin, "tenant-1"), 2 * FEW),
    Case("tenant_removal.cancel_some", on_session(tenant_removal.cancel_some, "tenant-1"), 8 * 500),
    *(
        Case("tenant_removal.delete_some", on_part(part), 8 * limit, part)
        for part, (_, limit) in tenant_removal.PARTS.items()
    ),
    Case("tenant_removal.end", lambda c: tenant_removal.end(c, "tenant-1")),
    Case("budgets.spent", lambda c: budgets.spent(c, {}), 20 * (2 + 50) + 2 * ENTRIES),
    Case("budgets.spent", spent_beside_jobs, 20 * (2 + 50) + 2 * ENTRIES, "beside jobs"),
    Case("budgets.withdraw_promises", lambda c: budgets.withdraw_promises(c, ["tenant-1"]), 5 * FEW),
    Case("budgets.left", on_session(budgets.left, "tenant-1", {}), FEW + 2 * ENTRIES),
    Case("usage.fold", on_session(usage.fold, 1000), 4 * 1000),
    Case("usage.used", on_session(usage.used, None, *LAST_MONTH), 2 * 30 * USING + 2 * ENTRIES),
    Case(
        "usage.used", on_session(usage.used, "tenant-0", *LAST_MONTH, ("day",)), 2 * 30 * USING + 2 * ENTRIES, "of one"
    ),
    Case("webhook_endpoints.create", on_session(webhook_endpoints.create, "tenant-1", "https://e.com", EVENT_TYPES)),
    Case("webhook_endpoints.list_endpoints", on_session(webhook_endpoints.list_endpoints, "tenant-0")),
    Case("webhook_endpoints.rotate", on_session(webhook_endpoints.rotate, "tenant-0", "we_1", 60)),
    Case("webhook_endpoints.remove", on_session(webhook_endpoints.remove, "tenant-0", "we_1")),
    Case("webhook_deliveries.claim", claim_deliveries, 4 * FEW),
    Case("webhook_deliveries.write_results", deliver, 8 * FEW),
    Case("webhook_deliveries.page", on_session(webhook_deliveries.page, "tenant-0", "we_1", limit=20), 3 * FEW),
    Case("webhook_deliveries.redeliver", on_session(webhook_deliveries.redeliver, "tenant-0", "we_1", 500)),
    Case("webhook_deliveries.delete_old", lambda c: webhook_deliveries.delete_old(c, HOUR, 500), 4 * 500),
    Case("api_keys.create", on_session(api_keys.create, name="n", tenant="t")),
    Case("api_keys.find", lambda c: api_keys.find(c, "magnus-x")),
    Case("api_keys.find_by_digest", lambda c: api_keys.find_by_digest(c, api_keys.digest("magnus-x"))),
    Case("api_keys.revoke", on_session(api_keys.revoke, "magnus-abcdef")),
    Case("api_keys.list_all", on_session(api_keys.list_all)),
    Case("tenant_limits.count_requests", lambda c: tenant_limits.count_requests(c, "tenant-0", 3, 60)),
    Case("tenant_limits.read_backlog", on_session(tenant_limits.read_backlog, "tenant"), 2 * QUEUED),
]
