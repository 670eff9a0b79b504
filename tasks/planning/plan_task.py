"""The task `tasks.plan`: one step of the planner, at beat's ticks and when somebody kicks."""

from functools import cache
from threading import Timer
from time import monotonic, sleep

import structlog
from celery import signals
from sqlalchemy.exc import SQLAlchemyError

from models.session import make_engine
from scheduling.policies.policy_factory import PolicySettings
from tasks.app import app, database_url, redis_url, settings
from tasks.messages import Messages
from tasks.planning.leader import Leader
from tasks.planning.planner import PlannerRules

REST_S = 0.02  # what a kick waits at most while others keep coming; a step takes a third of it
# While every worker decodes rows that others may join: fewer and larger joins, each of which costs a message, a
# transaction and a prefill. A worker whose rows all end meanwhile waits for the rest of it.
REST_WHILE_JOINING_S = 0.06

log = structlog.get_logger()


@cache
def leader() -> Leader:
    """This process's claim to the lead."""
    rules = PlannerRules(
        policy=settings.policy,
        settings=PolicySettings(
            max_prompt_tokens=settings.max_prompt_tokens,
            max_output_tokens=settings.max_output_tokens,
            wma_threshold=settings.phi,
            slice_tokens=settings.slice_length,
        ),
        alive_s=min(settings.lease_s, 6 * settings.heartbeat_s),
        lease_s=settings.lease_s,
        resend_s=settings.resend_s,
        max_attempts=settings.max_attempts,
        lookahead_s=2.5 * settings.tick_s,
    )
    return Leader(make_engine(database_url, pool_size=1, name="magnus planner"), rules)


@cache
def messages() -> Messages:
    """What this process says."""
    return Messages(app, redis_url)


class StepPacer:
    """Keeps steps at least `rest_s` apart, also those that fail: kicks that come meanwhile are one."""

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._began_at = self._next_at = 0.0

    def wait(self) -> None:
        """Until the next step may begin."""
        now = monotonic()
        if now < self._next_at:
            sleep(self._next_at - now)
        self._began_at = max(now, self._next_at)
        self.rest(self._rest_s)

    def rest(self, rest_s: float) -> None:
        """Let the next step begin no sooner than this after the last one began."""
        self._next_at = self._began_at + rest_s


pace = StepPacer(REST_S)


@app.task(name="tasks.plan", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def plan() -> None:
    """Decide once and send what was decided; an error is logged and the next tick begins anew."""
    pace.wait()
    messages().take_kick()
    try:
        batches = leader().step()
    except SQLAlchemyError as error:
        log.error("step failed", error=str(error))
        return
    messages().serve(batches)
    due_in_s = leader().due_in_s
    if leader().all_joinable and due_in_s is None:
        pace.rest(REST_WHILE_JOINING_S)
    if due_in_s is not None and due_in_s < settings.tick_s:
        kick = Timer(due_in_s, messages().kick_planner)
        kick.daemon = True
        kick.start()


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _resign(**_: object) -> None:
    leader().resign()
