"""The simulated service: planners, workers, a predictor and clients, made of the product's own objects; a broker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_config import TICK_S
from models import client_requests, new_requests
from models.client_requests import RequestView
from models.connections.session import make_engine
from models.new_requests import NewRequest
from models.tenants import tenant_limits
from processes.loop import Loop
from processes.planner_rules import PlannerRules
from scheduling.costs import ProfiledCurves
from scheduling.kv_memory import KvMemory
from scheduling.sharing.policy_factory import PolicySettings
from scheduling.worker_facts import WorkerFacts
from tasks.planning.leader import Leader
from tasks.planning.planner_loop import PlannerLoop, PlanQueue
from tasks.planning.planner_process import planner_database
from tasks.prediction.predictor_in_service import PredictorInService
from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.lease_heartbeat import LeaseTerms
from tasks.serving.batches.served_model import ServedModel
from tasks.serving.results.live_tokens import LiveRows
from tests.simulation.actors import Process, World
from tests.simulation.connections import engine_of
from tests.simulation.scripted_engine import CURVES, MODEL, POISON, ScriptedEngine, ScriptedTokens
from tests.simulation.side_work import Chores, Job

T = TypeVar("T")
# As short as the scripted prompts and answers: batches have several requests, slices and bins end within an answer.
SHORT = PolicySettings(max_prompt_tokens=40, max_output_tokens=40, wma_threshold=2000, slice_tokens=6, bin_tokens=8)
HEARTBEAT_S = 1.0
PRIORITY_REQUESTS = 2  # unfinished ones that a tenant may have
RETRY_S = 0.7  # a client's pause after an error of a call


class Broker:
    """What the product needs of `processes.celery.messages`; messages may be late, lost or come twice."""

    def __init__(self, world: World, outside: Process) -> None:
        self._world, self._outside = world, outside
        self.broker_error: str | None = None
        self.kicks: dict[str, Callable[[], None]] = {}  # by the name of a planner's process
        self.workers: dict[str, tuple[Process, Callable[[int], None]]] = {}

    def clear_kick(self) -> None:
        """Does nothing: every kick arrives."""

    def kick_planner(self, *, soon: bool = False) -> None:
        """Lets the planners step, unless the kick is lost."""
        if not self._world.chance(self._world.scenario.lost_messages):
            for kick in list(self.kicks.values()):
                kick()

    def send_batches(self, batches: Sequence[tuple[int, str]]) -> None:
        """Sends batches to the queues of their workers."""
        chance, scenario = self._world.chance, self._world.scenario
        for batch_id, worker in batches:
            copies = 2 if chance(scenario.repeated_messages) else 1
            for _ in range(0 if chance(scenario.lost_messages) else copies):
                late_s = self._world.random.random() * (6.0 if chance(scenario.late_messages) else 0.02)
                self._world.spawn("message", partial(self._deliver, worker, batch_id, late_s), self._outside)

    def _deliver(self, worker: str, batch_id: int, late_s: float) -> None:
        """Delivers a message to an actor of its worker's process, as to a thread of Celery's pool."""
        self._world.wait(None, late_s)
        self._world.wait(lambda: worker in self.workers, None)  # its queue keeps it
        process, serve = self.workers[worker]
        self._world.spawn(f"serve {batch_id}", partial(self._serve, serve, batch_id), process)

    def _serve(self, serve: Callable[[int], None], batch_id: int) -> None:
        try:
            serve(batch_id)
        except SQLAlchemyError as error:  # Celery logs it, and the message is gone
            self._world.tell(f"task failed: {type(error).__name__}")


@dataclass
class Asked:
    """A request as its client knows it."""

    new: NewRequest
    key: str
    id: str | None = None
    cancel_sent: bool = False
    cancelled: bool = False  # the service has confirmed the cancel
    runs: bool = False
    ended: str | None = None


@dataclass
class Service:
    """The processes of one simulation."""

    world: World
    url: str
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        scenario = self.world.scenario
        self._outside = self.world.process("outside")  # the broker and the supervisor, which nobody kills
        self.broker = Broker(self.world, self._outside)
        self._starts: dict[str, Callable[[Process], None]] = {}
        self.living: dict[str, Process] = {}
        self.engines: dict[Process, ScriptedEngine] = {}
        self.chores = Chores(self.world, self._engine)
        kinds: Sequence[tuple[str, int, Callable[[Process], None]]] = (
            ("planner-", scenario.planners, self._planner),
            ("w", scenario.workers, self._worker),
            ("predictor-", scenario.predictors, self._predictor),
            ("chores-", scenario.chores if scenario.jobs else 0, self.chores.start),
        )
        for name, number, start in kinds:
            for place in range(number):
                self._starts[f"{name}{place}"] = start
                self._start(f"{name}{place}")
        for number in range(scenario.clients):
            self._client(number)
        for number in range(scenario.jobs):
            process = self.world.process(f"uploader-{number}")
            call = partial(self._call, self._engine(process, "web", pool_size=1))
            job = partial(self.chores.send_job, call, Job(scenario.job_lines), f"job{number}")
            self.world.spawn("job", job, process)

    def _start(self, name: str) -> None:
        used = {one.process.number for one in self.world.actors if one.process.name == name and not one.done}
        number = next(number for number in range(len(used) + 1) if number not in used)
        process = self.living[name] = self.world.process(name, number)
        self.world.spawn("main", partial(self._try, name, process), process)

    def _try(self, name: str, process: Process) -> None:
        try:
            self._starts[name](process)
        except SQLAlchemyError:  # it cannot start without the database; its supervisor starts it again
            self.end(process, "does not start")

    def end(self, process: Process, why: str) -> None:
        """Ends a process; its supervisor starts it again."""
        self.world.condemn(process, why)
        if self.living.get(process.name) is not process:
            return
        pause_s = self.world.random.choice((0.1, 1.0, 8.0)) * (0.5 + self.world.random.random())
        self._forget(process)

        def supervise() -> None:
            self.world.wait(None, pause_s)
            self._start(process.name)

        self.world.spawn(f"supervises {process.name}", supervise, self._outside)

    def replace(self, process: Process) -> None:
        """Starts the successor of a frozen process, which will come back."""
        self._forget(process)
        self._start(process.name)

    def computing(self) -> list[tuple[str, str]]:
        """The requests in the engines of processes that have not ended, as (worker's name, request's id)."""
        alive = {actor.process for actor in self.world.actors if not actor.done}
        engines = [(process.name, engine) for process, engine in self.engines.items() if process in alive]
        return [(name, request) for name, engine in engines for request in engine.rows]

    def _forget(self, process: Process) -> None:
        self.broker.workers.pop(process.name, None)
        self.broker.kicks.pop(process.name, None)
        self.living.pop(process.name, None)

    @property
    def waiting(self) -> bool:
        """Whether a client still waits for the end of anything."""
        ends = [one.ended for one in self.asked] + [one.ended for one in self.chores.jobs]
        return None in ends

    def _engine(self, process: Process, name: str, **terms: Any) -> Engine:
        return engine_of(
            f"{process.name} {process.number} {name}",
            partial(make_engine, self.url, name=name, pool_timeout_s=0.0, **terms),
        )

    # the processes, each as its `main` function makes it

    def _planner(self, process: Process) -> None:
        rules = PlannerRules(
            self.world.scenario.policy,
            SHORT,
            lease_s=self.world.scenario.lease_s,
            lead_s=self.world.scenario.lead_s,
            alive_s=min(self.world.scenario.lease_s, 8 * HEARTBEAT_S),
            on_time_s=4 * HEARTBEAT_S,
            predictor_grace_s=2 * TICK_S,
        )
        leader = Leader(engine_of(f"{process.name} {process.number}", partial(planner_database, self.url)), rules)
        steps = PlannerLoop(leader, self.broker, PlanQueue(), TICK_S)  # type: ignore[arg-type]
        if self.living.get(process.name) is process:
            self.broker.kicks[process.name] = steps.on_kick
        steps.loop.start()

    def _worker(self, process: Process) -> None:
        name, kv_tokens = process.name, self.world.scenario.kv_tokens
        database = self._engine(process, "worker", pool_size=300, generic_plans=True)
        renewals = self._engine(process, "renewals", pool_size=1, autocommit=True, generic_plans=True)

        def make() -> ScriptedEngine:
            engine = ScriptedEngine(kv_tokens, lambda: self.world.chance(self.world.scenario.engine_failures))
            self.engines[process] = engine
            return engine

        facts = WorkerFacts(
            name, MODEL, "cpu", KvMemory(kv_tokens, 1), ProfiledCurves(CURVES), instance=f"{name}-{self.world.steps}"
        )
        runner = BatchRunner(
            database,
            ServedModel(make, ScriptedTokens(), facts),  # type: ignore[arg-type]
            LeaseTerms(self.world.scenario.lease_s, HEARTBEAT_S),
            renewals,
            self.broker.kick_planner,
            on_broken=lambda reason: self.end(process, reason),
            live_rows=LiveRows(lambda tokens: None),
        )
        runner.start()
        if self.living.get(name) is process:
            self.broker.workers[name] = process, runner.serve
        if self.world.chance(self.world.scenario.drains):
            self.world.wait(None, 5.0 + 30.0 * self.world.random.random())
            self.world.tell(f"{name} drains")
            if self.living.get(name) is process:
                self.broker.workers.pop(name, None)
            runner.stop()
            self.end(process, "has drained")

    def _predictor(self, process: Process) -> None:
        predictor = PredictorInService(self._engine(process, "predictor", pool_size=1), check_every_s=4.0, chunk=8)

        def look() -> None:
            predictor.run(lambda others: self.broker.kick_planner(soon=others))

        Loop("prediction", look, 1.9).start()

    # the clients

    def _client(self, number: int) -> None:
        process = self.world.process(f"client-{number}")
        tenant = f"tenant-{number // 2}"  # two clients of one tenant share its quota
        engine = self._engine(process, "web", pool_size=20)  # none of its calls waits for a connection
        for place in range(self.world.scenario.requests):
            asked = Asked(self._new(tenant, f"{number}.{place}"), f"{number}.{place}")
            self.asked.append(asked)
            self.world.spawn(f"call {place}", partial(self._ask, engine, asked), process)

    def _new(self, tenant: str, name: str) -> NewRequest:
        draw, scenario = self.world.random, self.world.scenario
        twin = self.world.chance(scenario.equal_requests)
        prompt = f"{draw.choice('pq') if twin else name}:" + "x" * (10 if twin else draw.randint(1, 30))
        if self.world.chance(scenario.poison):
            prompt += POISON
        if self.world.chance(scenario.too_large):
            prompt += "y" * scenario.kv_tokens
        tier: Any = draw.choice(("default", "flex", "priority", "priority"))
        deadline_s = draw.choice((5.0, 20.0)) if self.world.chance(scenario.deadlines) else None
        limit = 40 if twin else draw.choice((3, 15, 40))
        size = len(prompt)
        new = NewRequest(tenant, MODEL, draw.choice(("a", "b")), "", prompt, {}, size, size, limit, tier=tier)
        computation = f"{prompt} {limit}".encode() if twin else None
        return replace(new, deadline_s=deadline_s, priority=draw.choice((0, 0, 1)), computation=computation)

    def _ask(self, engine: Engine, asked: Asked) -> None:
        """Submits until the request is accepted, perhaps cancels it, and polls until its end."""
        draw = self.world.random
        self.world.wait(None, draw.choice((0.0, 0.5, 1.0)) * self.world.scenario.arrive_within_s)  # many at one instant
        view = self._call(engine, partial(self._submit, asked))
        asked.id = view.request.id
        self.broker.kick_planner()
        if self.world.chance(self.world.scenario.cancels):
            # some cancels meet a waiting request, most a running one at any step of its answer
            looks = draw.choice((0, 2, 4, 8, 20, 20))
            while looks and not asked.runs and asked.ended is None:
                self.world.wait(None, 0.5)
                self._call(engine, partial(self._poll, asked))
                looks -= 1
            self.world.wait(None, 2.0 * draw.random())
            self._call(engine, partial(self._cancel, asked))
        while asked.ended is None:
            self.world.wait(None, draw.choice((0.5, 2.0, 4.0, 8.0)))
            self._call(engine, partial(self._poll, asked))

    def _call(self, engine: Engine, call: Callable[[Session], T]) -> T:
        """Calls until the call succeeds; returns its result."""
        while True:
            try:
                with Session(engine, expire_on_commit=False) as session:
                    return call(session)
            except SQLAlchemyError:
                self.world.wait(None, RETRY_S)

    def _submit(self, asked: Asked, session: Session) -> RequestView:
        new = asked.new
        if new.tier == "priority" and not tenant_limits.may_prefer(session, new.tenant, PRIORITY_REQUESTS):
            new = replace(new, tier="default")
        view = new_requests.submit(session.connection(), new, idempotency_key=asked.key, digest=b"digest")
        session.commit()
        return view

    def _cancel(self, asked: Asked, session: Session) -> None:
        asked.cancel_sent = True
        assert asked.id is not None
        asked.cancelled = bool(client_requests.cancel(session, asked.new.tenant, [asked.id])) or asked.cancelled

    def _poll(self, asked: Asked, session: Session) -> None:
        assert asked.id is not None
        view = client_requests.fetch(session, asked.new.tenant, asked.id)
        if view is None:
            return self.world.fail(f"{asked.key} was accepted and is gone")
        asked.runs = view.request.status.value == "in_progress"
        if view.request.status.final:
            if client_requests.fetch(session, "a stranger", asked.id) is not None:
                self.world.fail(f"{asked.key} is shown to another tenant")
            asked.ended = view.request.status.value
            self.world.tell(f"{asked.key} ended {asked.ended}")
        return None
