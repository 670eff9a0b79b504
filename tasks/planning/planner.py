"""The planner: feeds what waits to the policy, asks it for assignments, claims them; what is sent is committed before.

All that it keeps in memory (the policies' waiting rooms, which batches are underway) can be rebuilt from Postgres at
any moment, and is: after an error, a lost connection or a change of policy a new epoch feeds everything again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import structlog
from sqlalchemy import Connection

from models import batch_claims, live_fleet, planner_requests, planner_state, reconciler
from models.batch_claims import Claim
from models.live_fleet import LiveWorker
from models.planner_state import PlannerInputs
from models.tables import BatchStatus
from scheduling.policies.policy_factory import PolicySettings, UnknownPolicy
from scheduling.policy import Assignment, Worker
from tasks.planning.fleet_view import FleetView, estimated
from tasks.planning.policies_by_model import PoliciesByModel
from tasks.planning.queue_snapshot import describe_queue
from tasks.planning.serving_estimates import ServingEstimates

SNAPSHOT_REST = 20  # snapshots of a long queue take at most a twentieth of the time
TYPICAL_WEIGHT = 0.1  # of the newest batch in the moving average of serving times

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PlannerRules:
    """What a planner goes by; durations in seconds."""

    policy: str  # in force until somebody sets another
    settings: PolicySettings
    alive_s: float = 3.0  # a worker that was not heard of for so long gets nothing new
    lease_s: float = 10.0
    resend_s: float = 2.0
    max_attempts: int = 5
    lookahead_s: float = 0.25  # a batch is sent so long before its worker should be free
    predictor_grace_s: float = 2.0  # a predictor that was not heard of for so long is away
    recover_every_s: float = 1.0
    snapshot_every_s: float = 0.5


class Planner:
    """One term of leadership, on the one connection that holds the planner's lock."""

    def __init__(self, connection: Connection, epoch: int, rules: PlannerRules) -> None:
        self._connection, self._epoch, self._rules = connection, epoch, rules
        self._rooms = PoliciesByModel(rules.policy, rules.settings)
        self._refused: str | None = None
        self._fleet = FleetView()
        self._estimates = ServingEstimates()
        self._decision_s = self._typical_s = 0.0
        self._led_since: float | None = None
        self._recovered_at = self._snapshot_next_at = 0.0
        self.all_joinable = False  # whether every worker had rows that others may join, at the last step
        self.due_in_s: float | None = None  # when the policies want to be asked again, if nothing happens before

    def step(self) -> list[tuple[int, str]]:
        """Look around and decide, in one transaction; the batches to be sent now, with their workers."""
        with self._connection.begin():
            return self.decide(planner_state.planner_inputs(self._connection))

    def decide(self, standing: PlannerInputs) -> list[tuple[int, str]]:
        """Recover, feed, settle, assign, claim."""
        rules, connection, now = self._rules, self._connection, standing.now
        self._follow(standing)
        resent = self._recover(standing)
        self._rooms.feed(planner_requests.fetch_new_requests(connection, self._epoch), now)
        live = live_fleet.live_workers(connection, rules.alive_s)
        self._settle(live, now)
        workers = self._fleet.workers(live, self._estimates.of, now, rules.lookahead_s)
        self.all_joinable = bool(workers) and all(worker.rows for some in workers.values() for worker in some)
        claims = self._assign(workers, now)
        if now >= self._snapshot_next_at:
            started = perf_counter()
            self._write_snapshot(workers, now)
            self._snapshot_next_at = now + max(rules.snapshot_every_s, SNAPSHOT_REST * (perf_counter() - started))
        wakes_at = [at for _, policy in self._rooms if (at := policy.wake_at(now)) is not None]
        self.due_in_s = max(0.0, min(wakes_at) - now) if wakes_at else None
        return resent + [(claim.batch_id, claim.assignment.worker) for claim in claims]

    def _follow(self, standing: PlannerInputs) -> None:
        """Adopt another policy or newer models as soon as they are in force."""
        self._led_since = standing.now if self._led_since is None else self._led_since
        self._estimates.follow(self._connection, standing.serving_time_version)
        self._rooms.set_rank_correlation(standing.tau)
        policy = standing.policy or self._rules.policy
        if policy in (self._rooms.policy, self._refused):
            return
        try:
            rooms = PoliciesByModel(policy, self._rules.settings)
        except UnknownPolicy as error:
            self._refused = policy
            log.error("policy not changed", error=str(error))
            return
        log.info("policy changed", before=self._rooms.policy, now=policy)
        rooms.set_rank_correlation(standing.tau)
        self._rooms, self._epoch = rooms, planner_state.next_epoch(self._connection)
        self._fleet.forget_policies()

    def _recover(self, standing: PlannerInputs) -> list[tuple[int, str]]:
        """Once a second: what was lost goes back, what is over ends, what was never taken is sent again."""
        rules, connection = self._rules, self._connection
        if standing.now - self._recovered_at < rules.recover_every_s:
            return []
        self._recovered_at = standing.now
        if standing.now - (self._led_since or standing.now) > rules.alive_s:
            # not before: while the database was away, no lease could be renewed
            lost = reconciler.lose_expired_batches(connection, rules.lease_s, rules.max_attempts)
            if lost:
                log.warning("batches lost", requests=len(lost))
        if standing.predictor_silent_s is None or standing.predictor_silent_s > rules.predictor_grace_s:
            reconciler.write_fallback_predictions(connection, rules.predictor_grace_s)
        reconciler.expire_deadlines(connection)
        self._rooms.discard(reconciler.recently_cancelled_or_failed(connection, 5 * rules.recover_every_s))
        return reconciler.batches_to_resend(connection, rules.resend_s)

    def _settle(self, live: Sequence[LiveWorker], now: float) -> None:
        """Learn which batches ended, and tell the policy that assigned them."""
        open_batches = live_fleet.open_batches(self._connection)
        unknown = self._fleet.unknown(open_batches)
        if unknown:
            self._fleet.inherit(open_batches, planner_requests.requests_of_batches(self._connection, unknown))
        ended = self._fleet.ended(open_batches)
        endings = live_fleet.batch_endings(self._connection, ended) if ended else {}
        for batch_id, batch in ended.items():
            ending = endings.get(batch_id)
            if ending is not None and ending.serving_s is not None:
                weight = TYPICAL_WEIGHT if self._typical_s else 1.0
                self._typical_s += weight * (ending.serving_s - self._typical_s)
            if batch.policy is None:
                continue
            if ending is None or ending.status is not BatchStatus.out_of_memory:
                batch.policy.finished(batch.assignment, now)
            elif _fits_nowhere(batch.assignment, live):
                reconciler.fail_too_large(self._connection, batch.assignment.requests[0].id)
            else:
                batch.policy.out_of_memory(batch.assignment, now)

    def _assign(self, workers: Mapping[str, Sequence[Worker]], now: float) -> list[Claim]:
        """Ask every model's policy for assignments and claim them."""
        claims: list[Claim] = []
        for model, policy in self._rooms:
            of_model = workers.get(model, ())
            if not of_model or (policy.mode == "batch" and not any(worker.idle for worker in of_model)):
                continue
            started = perf_counter()
            assignments = estimated(policy.assign(of_model, now), of_model)
            self._decision_s = perf_counter() - started
            if assignments:
                made = batch_claims.claim_batches(self._connection, assignments, self._rooms.policy, self._epoch)
                self._fleet.assigned(made, policy)
                claims += made
        return claims

    def _write_snapshot(self, workers: Mapping[str, Sequence[Worker]], now: float) -> None:
        batches, backlog_s = [], 0.0
        for model, policy in self._rooms:
            described, behind_s = describe_queue(policy.waiting(now), len(policy), workers.get(model, ()))
            batches += described
            backlog_s = max(backlog_s, behind_s)
        value = {
            "epoch": self._epoch,
            "policy": self._rooms.policy,
            "waiting": len(self._rooms),
            "backlog_s": round(backlog_s, 4),
            "typical_s": round(self._typical_s, 4),
            "decision_s": round(self._decision_s, 6),
            "batches": batches,
        }
        planner_state.write_service_state(self._connection, "planner", value)


def _fits_nowhere(assignment: Assignment, live: Sequence[LiveWorker]) -> bool:
    """Whether one request alone ran out of memory on a worker than which none has more."""
    worker = next((worker for worker in live if worker.name == assignment.worker), None)
    return (
        worker is not None
        and len(assignment.requests) == 1
        and not assignment.joins
        and all(other.theta_bytes <= worker.theta_bytes for other in live if other.model == worker.model)
    )
