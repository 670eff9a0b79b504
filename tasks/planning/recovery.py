"""The planner's recovery: requeues lost batches, predicts without a predictor, finds unreachable workers."""

from collections.abc import Mapping

import structlog
from sqlalchemy import Connection

from models.planner_state import PlannerInputs
from models.planning import planner_requests
from models.upkeep import reconciler
from processes.celery.messages import NO_BATCH
from processes.planner_rules import PlannerRules

# A worker counts as unreachable after this many messages about one batch; by default it has had 8 s by then. More
# messages delay the batch, fewer suspect workers that are only busy. Not tuned.
MOST_SENDS = 4

log = structlog.get_logger()


class Recovery:
    """The recovery of one term of leadership; its queries run in the caller's transaction."""

    def __init__(self, connection: Connection, rules: PlannerRules) -> None:
        self._connection, self._rules = connection, rules
        self._leading_since: float | None = None
        self._recovered_at = self._unsent_at = 0.0
        self._seem_gone = False

    def begin_if_due(self, now: float) -> bool:
        """Begins a recovery if the last one began at least `recover_every_s` ago; returns whether it did."""
        self._leading_since = now if self._leading_since is None else self._leading_since
        if now - self._recovered_at < self._rules.recover_every_s:
            return False
        self._recovered_at = now
        return True

    def broker_took_nothing(self, now: float) -> None:
        """Records that messages do not reach the broker, so that no worker is suspected because of them."""
        self._unsent_at = now

    def end_what_was_lost(self, inputs: PlannerInputs) -> None:
        """Requeues lost batches, and predicts if no predictor works."""
        rules, connection = self._rules, self._connection
        if inputs.now - (self._leading_since or inputs.now) > rules.alive_s:
            # not before `alive_s` of leading: while the database was away, no worker could renew its leases
            lost = reconciler.lose_expired_batches(connection, rules.lease_s)
            if lost:
                log.warning("batches lost", requests=len(lost))
        if inputs.predictor_silent_s is None or inputs.predictor_silent_s > rules.predictor_grace_s:
            reconciler.write_fallback_predictions(connection, rules.predictor_grace_s)

    def ended_without_answer(self) -> list[str]:
        """Returns the ids of requests that were cancelled or failed lately, so that policies discard them."""
        # Five intervals, so that a request that ended just after one recovery is still found at the next ones.
        return reconciler.recently_cancelled_or_failed(self._connection, 5 * self._rules.recover_every_s)

    def some_are_gone(self, unserved: Mapping[str, int]) -> bool:
        """Returns whether fewer requests are stored than wait in the policies of these models, which have no workers.

        The last recovery must have found that, too, because lines of a job paused just now still wait in the policies.
        The missing ones were deleted, moved, or cancelled during a long step. With workers, claims find them.
        """
        stored = planner_requests.queued_by_model(self._connection, list(unserved)) if unserved else {}
        seemed_gone, self._seem_gone = self._seem_gone, any(of > stored.get(model, 0) for model, of in unserved.items())
        return seemed_gone and self._seem_gone

    def messages_to_send_again(self, now: float) -> list[tuple[int, str]]:
        """Returns batches that were sent and not taken, and a probe for each unreachable worker."""
        rules, connection = self._rules, self._connection
        unreachable: list[str] = []
        if now - self._unsent_at > MOST_SENDS * (rules.resend_s + rules.recover_every_s):
            # not sooner after a fault of the broker: workers cannot take messages that did not reach it
            unreachable = reconciler.withdraw_untaken_batches(connection, rules.resend_s, MOST_SENDS)
        for name in unreachable:
            log.error("worker takes no messages", worker=name, remedy="compare its MAGNUS_REDIS_URL with the planner's")
        probes = [(NO_BATCH, name) for name in reconciler.workers_to_probe(connection, rules.alive_s)]
        # a message that the broker refuses makes no worker suspect
        on_time_s = rules.on_time_s if now > self._unsent_at else 0.0
        return reconciler.batches_to_resend(connection, rules.resend_s, on_time_s) + probes
