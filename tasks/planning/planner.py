"""The planner's step: feeds queued requests to the policy, asks it for assignments, and claims them as batches.

Its memory (the policies with their queued requests, the batches in flight) is a cache of Postgres. After an error, a
lost connection or a change of policy, a new epoch rebuilds it: every queued request is fed again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain
from time import perf_counter, thread_time

import structlog
from sqlalchemy import Connection

from models import notifications, planner_state
from models.planner_state import PlannerInputs
from models.planning import batch_claims, leadership, live_fleet, planner_requests, twins
from models.planning.batch_claims import Claim
from models.planning.leadership import Lead
from models.planning.live_fleet import Lacking
from models.planning.planner_requests import QueuedRequest
from models.planning.queue_snapshot import Decisions, ModelState, QueueSnapshot, WaitingQueue, write_queue_snapshot
from models.registered_workers import RegisteredWorker, registered_workers, told_apart
from models.upkeep import reconciler
from off_peak_hours import off_peak_at
from processes.planner_rules import PlannerRules
from scheduling.costs import ServingTime
from scheduling.forecast.forecast import next_step_s
from scheduling.policy import Worker
from scheduling.request import Request
from scheduling.sharing.policy_factory import UnknownPolicy, favour_of
from tasks.planning.budget_gate import BudgetGate
from tasks.planning.fleet_view import FleetView, next_due_in_s, with_estimates, work_after_change
from tasks.planning.forecasts import Forecasts, ModelQueueView, WorkByModel
from tasks.planning.policies_by_model import PoliciesByModel, failing_requests, policy_fails
from tasks.planning.queue_description import describe_queues
from tasks.planning.recovery import Recovery
from tasks.planning.serving_estimates import RecentServingTimes, ServingEstimates

# The pause before the next snapshot is this many times the CPU time of the last one, so that snapshots of a long queue
# take at most a fortieth of the planner's time; their duration is many times longer where others use the CPUs, too. Not
# tuned.
SNAPSHOT_SPACING = 40
# The simplest policy. It plans for the rest of a term if the policy in force fails and no single request is the cause.
FALLBACK_POLICY = "vs"

Send = Callable[[list[tuple[int, str]]], None]

log = structlog.get_logger()


def leave_to_caller(batches: list[tuple[int, str]]) -> None:
    """Sends nothing, because the caller sends the batches that `step` returns."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the last step says about when to take the next one."""

    has_work: bool = False  # whether anything waits or is in flight
    # seconds of the shortest decoding step of any worker; None unless every worker has rows that others may join
    shortest_step_s: float | None = None
    serves_background: bool = False  # whether a worker has rows of bulk jobs
    due_in_s: float | None = None  # seconds until a policy wants to be asked again even if nothing happens
    unfinished: bool = False  # whether the step left requests to be fetched or ended, for which a pause has no use


class Planner:
    """A planner during one term of its leadership."""

    def __init__(
        self, connection: Connection, lead: Lead, epoch: int, rules: PlannerRules, *, careful: bool = False
    ) -> None:
        """`careful` says that the last two steps had unforeseen errors: their cause is then searched in the queue."""
        self._careful = careful
        self._connection, self._lead, self._epoch, self._rules = connection, lead, epoch, rules
        self._policies = PoliciesByModel(rules.policy, rules.settings)
        self._refused_policy: str | None = None  # a policy that is set in the database but unknown here
        self._fleet = FleetView()
        self._estimates, self._forecasts = ServingEstimates(), Forecasts()
        self._recovery, self._budgets = Recovery(connection, rules), BudgetGate(connection, rules.prices)
        self._live: list[RegisteredWorker] = []
        self._recent_times, self._decision_s = RecentServingTimes(), 0.0
        self._snapshot_due_at = self._renewed_at = self._late_due_at = 0.0
        self._more_are_late = self._more_to_share = False
        self._broker_error: str | None = None
        self._paused = False
        self._off_peak_at: float | None = None  # when off-peak hours begin; None within them, and if none are set
        self._unserved_since: dict[str, float] = {}  # since when a model has had requests and no worker
        self._largest_tokens: dict[str, int] = {}  # by model, the tokens of the longest row that fits a worker
        self._lacking: dict[str, Lacking] = {}  # by model, the abilities that its workers lack
        self.fetched_all = True  # whether no queued request was left to be fetched at the last step
        self.outlook = Outlook()

    def step(self, *, broker_error: str | None = None, send: Send = leave_to_caller) -> list[tuple[int, str]]:
        """Decides in one transaction; returns the batches to send, as (batch id, worker's name). Raises LeadLost.

        `broker_error` is the broker's fault, if any. `send` gets these batches after the commit, before the forecast.
        """
        self._end_late()
        self._share_answers()
        with self._connection.begin():
            began = perf_counter()
            inputs = planner_state.planner_inputs(self._connection)
            self._broker_error = broker_error
            if broker_error is not None:
                self._recovery.broker_took_nothing(inputs.now)
            if inputs.now - self._renewed_at > self._rules.renew_every_s:
                self._renew(inputs.now)
            batches = self.decide(inputs)
            if perf_counter() - began > self._rules.renew_every_s:  # a stand-by must not take over after a slow step
                self._renew(inputs.now)
        send(batches)
        with self._connection.begin():
            self._look_ahead(inputs.now)
        return batches

    def _end_late(self) -> None:
        """Fails requests whose deadline has passed; commits at once, because a predictor that writes to them waits."""
        if perf_counter() < self._late_due_at:
            return
        with self._connection.begin():
            leadership.hold(self._connection, self._lead)  # only the leader's policies can drop them
            late = reconciler.expire_deadlines(self._connection)
        self._policies.discard_all(late)
        self._more_are_late = len(late) == reconciler.EXPIRED_AT_ONCE
        self._late_due_at = perf_counter() + (0.0 if self._more_are_late else self._rules.recover_every_s)

    def _share_answers(self) -> None:
        """Gives the answers of ended requests to their twins, a bounded number; tells the calls that wait for them."""
        with self._connection.begin():
            answered = twins.share_answers(self._connection)
        self._more_to_share = len(answered) == twins.SHARED_AT_ONCE
        if answered:
            with self._connection.begin():
                notifications.notify_ended(self._connection, answered)

    def _renew(self, now: float) -> None:
        leadership.renew(self._connection, self._lead, self._rules.lead_s)
        self._renewed_at = now

    def decide(self, inputs: PlannerInputs) -> list[tuple[int, str]]:
        """Adopts inputs, recovers batches, feeds the policies and lets them assign; returns the batches to send."""
        now = inputs.now
        self._adopt(inputs)
        resent = self._recover(inputs)
        live = live_fleet.live_workers(self._connection, self._rules.alive_s)
        if not all(self._lacking.get(worker.model, Lacking()).explains(worker.lacks) for worker in live):
            self._adopt_abilities(self._heard_workers())  # a new worker differs from the known ones
        self._estimates.pool(live)
        self._feed(live, now)
        self._settle()
        workers = self._fleet.workers(live, self._serving_time_of, now, self._rules.lookahead_s)
        claims = [] if inputs.paused else self._assign(workers, now)
        self._live, self._paused = live, inputs.paused
        every = [*chain.from_iterable(workers.values())]
        all_joinable = bool(workers) and all(worker.rows for worker in every)
        due_in_s = next_due_in_s(self._policies, workers, claims, now, self._rules.lookahead_s)
        self.outlook = Outlook(
            has_work=len(self._policies) > 0 or self._fleet.busy,
            shortest_step_s=min(next_step_s(worker, worker.costs) for worker in every) if all_joinable else None,
            serves_background=any(row.request.background for worker in every for row in worker.rows),
            due_in_s=None if inputs.paused else due_in_s,
            unfinished=not self.fetched_all or self._more_are_late or self._more_to_share,
        )
        return resent + [(claim.batch_id, claim.assignment.worker) for claim in claims]

    def _look_ahead(self, now: float) -> None:
        """Computes forecasts for a moment and writes the snapshot of the queue, each if it is due."""
        workers = cache(lambda: self._fleet.workers(self._live, self._serving_time_of, now, self._rules.lookahead_s))
        self._forecasts.begin(self._policies, lambda: self._present_work(workers()), now)
        self._forecasts.advance(partial(planner_requests.ends_of, self._connection), now)
        if now >= self._snapshot_due_at:
            self._publish_snapshot(workers(), now)

    def _serving_time_of(self, worker: RegisteredWorker) -> ServingTime:
        return self._estimates.serving_time_for(worker, joins=self._policies.mode == "continuous")

    def _present_work(self, workers: Mapping[str, Sequence[Worker]]) -> WorkByModel:
        costs = {worker.name: self._estimates.serving_time_for(worker, joins=True) for worker in self._live}
        everyone = [*chain.from_iterable(workers.values())]
        unloaded = {model: work_after_change(everyone, model) for model, _ in self._policies if model not in workers}
        return unloaded | {model: self._fleet.present_work(of_model, costs) for model, of_model in workers.items()}

    def _adopt(self, inputs: PlannerInputs) -> None:
        """Adopts the policy in force, the serving time estimator, the predictions' tau and the tenants' weights."""
        self._estimates.adopt(self._connection, inputs.serving_time_version)
        self._policies.set_rank_correlation(inputs.rank_correlation)
        self._policies.set_weights(inputs.weights)
        self._adopt_hours(inputs)
        self._budgets.adopt(self._policies, self._rules.fetched_at_once)
        policy = inputs.policy or self._rules.policy
        if policy in (self._policies.policy, self._refused_policy):
            return
        try:
            policies = PoliciesByModel(policy, self._rules.settings, self._policies.differing_abilities)
        except UnknownPolicy as error:
            self._refused_policy = policy
            log.error("policy not changed", error=str(error))
            return
        log.info("policy changed", before=self._policies.policy, now=policy)
        self._begin_with(policies)

    def _adopt_hours(self, inputs: PlannerInputs) -> None:
        """Reads the queue again when off-peak hours begin or end: policies have off-peak requests only within them."""
        before, self._off_peak_at = self._off_peak_at, off_peak_at(self._rules.off_peak, inputs.now)
        if (before is None) is not (self._off_peak_at is None):
            log.info("off-peak hours change", begin_at=self._off_peak_at)
            self._read_queue_again(self._policies.differing_abilities)

    def _begin_with(self, policies: PoliciesByModel) -> None:
        """Replaces the policies and draws a new epoch, so that every queued request is fed to them again."""
        policies.set_rank_correlation(self._policies.rank_correlation)
        policies.set_weights(self._policies.weights)
        self._policies, self._epoch = policies, planner_state.next_epoch(self._connection)

    def _without_failing(
        self, queued: Sequence[QueuedRequest], live: Sequence[RegisteredWorker], now: float
    ) -> list[QueuedRequest]:
        """Fails the requests that make the policy fail, and returns the others.

        If the policy fails without them, too, FALLBACK_POLICY plans for the rest of this term.
        """
        policy = self._policies.policy
        # open batches are not read yet, so every worker counts as idle
        workers = self._fleet.workers(live, self._serving_time_of, now, self._rules.lookahead_s)
        fails = partial(policy_fails, policy, self._rules.settings, workers, now)
        failing = {one.request.id for one in failing_requests(fails, queued)}
        kept = [one for one in queued if one.request.id not in failing]
        for request_id in sorted(failing):
            log.error("request set aside", request=request_id, policy=policy)
            reconciler.fail_unschedulable(self._connection, request_id)
        if fails(kept):
            log.error("policy set aside", policy=policy, instead=FALLBACK_POLICY)
            self._refused_policy = policy
            differing = self._policies.differing_abilities
            self._policies = PoliciesByModel(FALLBACK_POLICY, self._rules.settings, differing)
        return kept

    def _recover(self, inputs: PlannerInputs) -> list[tuple[int, str]]:
        """Recovers lost batches every `recover_every_s`; returns the batches whose messages must be sent again."""
        if not self._recovery.begin_if_due(inputs.now):
            return []
        self._recovery.end_what_was_lost(inputs)
        heard = self._heard_workers()
        self._adopt_largest(live_fleet.largest_workers(heard))
        self._adopt_abilities(heard)
        self._policies.discard_all(self._recovery.ended_without_answer())
        unserved = {model: len(policy) for model, policy in self._policies if model in self._unserved_since}
        if self._recovery.some_are_gone(unserved):
            self._read_queue_again(self._policies.differing_abilities)
        return self._recovery.messages_to_send_again(inputs.now)

    def _feed(self, live: Sequence[RegisteredWorker], now: float) -> None:
        """Gives the policies new requests, takes held ones back from them, and fails requests that fit no worker."""
        fetched = planner_requests.fetch_new_requests(self._connection, self._epoch, self._rules.fetched_at_once)
        self.fetched_all = len(fetched) < self._rules.fetched_at_once
        follow = set[str]()
        if self._rules.shares_twins:
            follow = twins.follow(self._connection, [one.request.id for one in fetched if one.shares])
        early = {one.request.id for one in fetched if one.held or self._too_early(one.request)}
        kept = early | follow | {one.request.id for one in fetched if self._budgets.spent.covers(one.request)}
        self._policies.discard_all(kept)
        queued = [one for one in fetched if one.request.id not in kept]
        for model, tokens in live_fleet.largest_workers(live).items():
            self._largest_tokens[model] = max(tokens, self._largest_tokens.get(model, 0))
        too_large = defaultdict(list)
        for one in queued:
            if self._fits_nowhere(one):
                too_large[one.model].append(one.request.id)
        failed = {request_id for model, ids in too_large.items() for request_id in self._fail_too_large(model, ids)}
        queued = [one for one in queued if one.request.id not in failed]
        if self._careful:
            queued, self._careful = self._without_failing(queued, live, now), not self.fetched_all
        self._policies.feed(queued, now)
        self._forecasts.add_arrivals(queued, now)

    def _too_early(self, request: Request) -> bool:
        """Returns whether the request has not begun and waits for off-peak hours, when it is fetched again."""
        return request.tier == "off_peak" and self._off_peak_at is not None and not request.generated

    def _fits_nowhere(self, one: QueuedRequest) -> bool:
        """Returns whether the largest worker has no memory for one more token, or the request alone outgrew it."""
        largest_tokens = self._largest_tokens.get(one.model)
        return largest_tokens is not None and max(one.request.prefill, one.request.outgrew_tokens) >= largest_tokens

    def _fail_too_large(self, model: str, among: Collection[str] | None = None) -> list[str]:
        failed = reconciler.fail_too_large(self._connection, model, self._largest_tokens[model], among)
        self._policies.discard_all(failed)
        return failed

    def _heard_workers(self) -> list[RegisteredWorker]:
        return told_apart(registered_workers(self._connection, self._rules.fleet_memory_s))

    def _adopt_largest(self, largest_tokens: dict[str, int]) -> None:
        """Adopts each model's longest row in tokens; if that has shrunk, fails the requests that now fit no worker."""
        before, self._largest_tokens = self._largest_tokens, largest_tokens
        for model, tokens in self._largest_tokens.items():
            if tokens < before.get(model, 0):
                self._fail_too_large(model)

    def _adopt_abilities(self, heard: Iterable[RegisteredWorker]) -> None:
        """Adopts the abilities that workers lack; replaces the policies if workers of a model now differ in others."""
        self._lacking = live_fleet.lacking(heard)
        differing = {model: lacking.some for model, lacking in self._lacking.items() if lacking.some}
        if differing != self._policies.differing_abilities:
            self._read_queue_again(differing)

    def _read_queue_again(self, differing: Mapping[str, frozenset[str]]) -> None:
        self._begin_with(PoliciesByModel(self._policies.policy, self._rules.settings, differing))

    def _settle(self) -> None:
        """Updates the batches in flight; remembers those that have ended, for the mean of recent serving times."""
        open_batches = live_fleet.open_batches(self._connection)
        unknown = self._fleet.unknown(open_batches)
        if unknown:
            self._fleet.inherit(open_batches, planner_requests.requests_of_batches(self._connection, unknown))
        self._recent_times.add(self._fleet.update(open_batches))

    def _assign(self, workers: Mapping[str, Sequence[Worker]], now: float) -> list[Claim]:
        """Asks the policies for assignments and changes of model; claims the batches and orders the changes."""
        started = perf_counter()
        decided = self._policies.assign([*chain.from_iterable(workers.values())], now)
        self._forecasts.decided(decided, {model: len(policy) for model, policy in self._policies}, now)
        if not decided:
            return []
        served = (one for one in decided if one.loads is None)
        assignments = with_estimates(served, chain.from_iterable(workers.values()))
        changes = {one.worker: one.loads for one in decided if one.loads is not None}
        self._decision_s = perf_counter() - started
        if changes:
            log.info("models change", workers=changes)
            leadership.hold(self._connection, self._lead)
            live_fleet.order_changes(self._connection, changes)
        claims: list[Claim] = []
        if assignments:
            claims = batch_claims.claim_batches(
                self._connection, self._lead, assignments, self._policies.policy, self._epoch
            )
            self._fleet.add(claims)
        return claims

    def _publish_snapshot(self, workers: Mapping[str, Sequence[Worker]], now: float) -> None:
        began = thread_time()
        queues, backlog_s = describe_queues(self._policies, workers, now)
        favour = favour_of(self._policies.policy, self._rules.settings)
        views = {
            model: ModelQueueView(
                [name for batch in queues[model] for name in batch.ids],
                self._policies.waiting_for(model),
                favour=favour,
                joins=self._policies.mode == "continuous",
            )
            for model, _ in self._policies
        }
        waiting = WaitingQueue(
            requests=len(self._policies),
            backlog_s=round(backlog_s, 4),
            served_s=round(self._recent_times.mean_s(self._connection), 4),
            batches=tuple(batch for batches in queues.values() for batch in batches),
        )
        snapshot = QueueSnapshot(
            at=datetime.fromtimestamp(now, UTC),
            decisions=Decisions(
                epoch=self._epoch,
                policy=self._policies.policy,
                last_s=round(self._decision_s, 6),
                paused=self._paused,
                off_peak_at=self._off_peak_at,
                spent_tenants=tuple(sorted(self._budgets.spent.tenants)),
                spent_jobs=tuple(sorted(self._budgets.spent.jobs)),
                broker_error=self._broker_error,
            ),
            queue=waiting,
            models=self._model_states(now),
            forecasts=self._forecasts.described(self._present_work(workers), views, now),
        )
        write_queue_snapshot(self._connection, snapshot)
        self._snapshot_due_at = now + max(self._rules.snapshot_every_s, SNAPSHOT_SPACING * (thread_time() - began))

    def _model_states(self, now: float) -> dict[str, ModelState]:
        """Returns the state of each model's workers, also of models that have only requests."""
        served = {model for worker in self._live for model in (worker.model, *worker.loadable)}
        unserved = {model: len(policy) for model, policy in self._policies if len(policy) and model not in served}
        self._unserved_since = {model: self._unserved_since.get(model, now) for model in unserved}
        loaded = Counter(worker.model for worker in self._live)
        return {
            model: ModelState(
                workers=loaded[model],
                unserved=unserved.get(model, 0),
                unserved_s=round(now - self._unserved_since.get(model, now), 1),
                largest_tokens=self._largest_tokens.get(model),
                lacking=tuple(sorted(self._lacking.get(model, Lacking()).all)),
            )
            for model in sorted({*unserved, *loaded, *self._largest_tokens, *self._lacking})
        }
