"""Every promise, in the order in which they are measured: the shared service first, then those with their own."""

from benchmarks.chaos.promise_rows import Promise
from benchmarks.chaos.promises import (
    bulk_promises,
    client_promises,
    engine_promises,
    host_promises,
    process_promises,
    server_promises,
    soak_promises,
    storage_promises,
)

PROMISES = {
    promise.name: promise
    for promise in (
        Promise("idle", client_promises.idle_connections),
        Promise("hostile", client_promises.hostile),
        Promise("models", storage_promises.learned_models),
        Promise("kills", process_promises.kills),
        Promise("rescue", process_promises.rescues),
        Promise("rate", process_promises.kill_rate),
        Promise("rolling", process_promises.rolling_restart),
        Promise("broker", server_promises.broker, breaks_servers=True),
        Promise("postgres", server_promises.postgres, breaks_servers=True),
        Promise("leaders", host_promises.leaders),
        Promise("canary", client_promises.canary),
        Promise("migration", storage_promises.newer_migration),
        Promise("bulk", bulk_promises.bulk_jobs),
        Promise("freezes", process_promises.freezes),
        Promise("cut", client_promises.cut_connections, own_service=True),
        Promise("webhooks", bulk_promises.webhooks, own_service=True),
        Promise("poison", engine_promises.poison, own_service=True),
        Promise("memory", engine_promises.out_of_memory, own_service=True),
        Promise("clocks", host_promises.clocks, own_service=True),
        Promise("disk", storage_promises.disk_full, own_service=True),
        Promise("refused", storage_promises.refused_starts, own_service=True),
        Promise("soak", soak_promises.soak, own_service=True),
    )
}
