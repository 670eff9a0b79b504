"""What may not grow unnoticed: whoever needs more raises a number here, and says why beside it in the diff.

The numbers are what is there today, not aims; anybody may lower one.
"""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.running_batch import RunningBatch
from models.bulk.bulk_tables import BulkJob
from models.planning.queue_snapshot import QueueSnapshot
from models.tables import Base, StoredBatch, StoredRequest, StoredWorker
from protocol.limits.prompt_limits import PromptLimits
from request_body import RequestBody
from scheduling.policy import Worker
from scheduling.request import Request
from scheduling.worker_facts import WorkerFacts, WorkerReport
from settings import Settings

ROOT = Path(__file__).parents[2]
# The widest types, which every feature is tempted to widen by a field.
FIELDS: dict[type, int] = {
    Settings: 65,  # off-peak hours; prices, how long a quote holds, the least chance of a deadline, a public book
    QueueSnapshot: 6,
    PromptLimits: 13,  # the limit of calls without one; whether schemas are read literally
    # the instant of a template's clock, and the reading of schemas: alike in web and worker; whether an earlier request
    # of its call counts its prompt; whether it may share an equal request's answer
    RequestBody: 29,
    Request: 17,
    DecodingRequest: 19,
    Worker: 11,
    WorkerFacts: 13,  # what generates a worker's tokens, which only the worker can tell
    # its host's clock, which only the worker can tell; loops that its engine ended, and the tokens that this saved
    WorkerReport: 10,
}
# requests: what generated their tokens, the claim of a predictor, which locks no row while it computes, and the stop
# string that ended them, which a message must name; what equal requests share, whose answer one gets, and whether its
# end is still to be told to them; what it counts against limits of expected work;
# jobs: their usage, and when their deletion began; what they used, were expected to use, and may use
COLUMNS: dict[type[Base], int] = {StoredWorker: 13, StoredRequest: 52, StoredBatch: 29, BulkJob: 44}
PARAMETERS: dict[type, int] = {Engine: 3, RunningBatch: 3}
LINES = {
    # a fault in the same words everywhere; idle connections and refused bodies are closed; Anthropic's messages;
    # turns of tenants; figures of ended loops; off-peak hours and charges of expected work; progress of every stream
    # quotes, their signature, refused deadlines, and the page of promises
    # quotes of batches; budgets of batches and where they pause
    # repeats of calls whose quote is over or whose deadline is far by now; deadlines before promised times;
    # keys of tenants that are removed
    "webapp": 8327,  # the id that clients of /v1/messages read; times only where a policy has some
    # custom tools, grammars, nulls; usage of a batch; what other services' clients send; Anthropic's messages
    # progress of every stream, also in comments, and tokens left
    # quotes, promises and their book; those of batches, and budgets, which are asked again when a quote is accepted
    "protocol": 6100,  # empty answers; limits below formats; budgets of thinking; reasons; tools of Anthropic's
    # late requests end in a transaction of their own; a long prefill is no stall; fingerprints; claims of a predictor;
    # which stop string ended an answer; kicks end long pauses; answers that were led to their end;
    # thinking of raw prompts' answers; ended loops; the pace and the order of each model's queue; off-peak hours
    # parked rows; half-way ETAs by the place of the own key; how long arrivals go on; the pace of rows
    # promises; joiners wait at the worker while memory is short; requests whose budget is spent are kept from policies
    # they wait for a bounded time, and begin when they join
    # budgets are read less often while a read takes long
    # a part of the upkeep that fails holds up no other part
    "tasks": 5842,
    "processes": 1564,  # the script that starts a child lies here: the trainer lowers its priority with it; prices
    # a tenant's priorities share buckets; deadlines are judged and moved a bounded number at a time; models keep their
    # only worker; a peak of memory may be exceeded by a factor; simulated rows wait for memory at their worker;
    # figures of ended loops; what `fusion` favours; a worker's time by its speed; the order of a
    # half-way ETAs by the place of the own key; how long arrivals go on; the pace of rows
    # queue, from which ETAs at submission follow; twins; what a decision keeps of the rows for the next one
    # lengths of rows as predicted last
    # the mean of a predicted length
    # the seconds within which any share of the answers comes; `fusion` measures its pace, and fills a reserved worker
    # which has bounds; requests that are due follow each other in a round
    # a response and the soonest one are solved in one pass, which each submission needs
    # rows leave for a worker that has run dry, and with favour=goodput for shorter requests
    # prompts count only where they rank recent answers
    "scheduling": 9878,
    "learning": 3501,  # the axes of the paper's KNN; rows that join
    # fingerprints; grammars; growing answers are read piece by piece; rows beside long prompts; models of several media
    # a server's tokenizer is tried for its ids; which stop string ended an answer
    # decoders saved alone; distances counted from the longest row; answers in a format are led to their end, whose
    # shortest way is looked for; budgets of thinking; loops; faults of architectures; indexers; GPT-Neo's window;
    # graphs are recorded before the first request
    # readings of rows that join, within their share of the time
    # ends within and behind thinking; ways out of recursions; parked rows; abbreviations
    # tokens that the host reads one pass later, and those that it then chooses anew; tiles of prompts' tokens; tables
    # of pages no wider than a model's longest row; rows that enter an empty engine are read
    "inference": 13_512,
    # what generated a row's tokens; claims of a predictor; usage and deletion of a batch; answers in parts; the audit;
    # the removal of a tenant; which stop string ended an answer; charges of expected work
    # tokens left
    # promises, their book, and the work of a request; bounds of an ETA; budgets, promises of batches; a spent budget
    # withdraws promises, ends forecasts, and leaves requests in the database alone; its work wants no worker; promises
    # are judged by model; months of usage
    # whether a call is a repeat; twins of several large answers, and expired charges, are bounded a step
    "models": 10_429,
    # a start says what it waits for; the removal of a tenant; the audit of commands; an agent reads vectors and scores;
    # examples of longer toy texts
    # a chat shows how long its answer still takes; requests of a load may be sent with quotes; budgets that need prices
    "cli": 6870,
    "migrations": 418,  # triggers of charges, of deleted requests' twins and of months of usage; budgets
    # 10,500, the papers' round robin, which was in `scheduling`, the twelve rivals of `fusion`, and the phases of a GPU
    # that can be had for minutes; shapes of load, paced workers and QLM's estimator; promises that
    # are sold in the simulator and live, and what they earn beside other admissions
    "benchmarks": 12_837,
}
# Modules of the product that know a feature by its name: a new option of one should not touch all of them.
FILES_THAT_NAME = {
    "guess": 19,
    "longrope": 6,
    "adapter": 50,  # their fingerprints, of a directory and of a server
    "probe": 25,  # a probed server has a fingerprint
    "loadable": 18,
    # twins are of one tier, and the migration rebuilds indexes by tier; a decision reads it of all rows, without a call
    # offers are made, priced and counted by tier; so are batches' and what budgets have used
    "tier": 76,
    "logprob": 45,  # an answer is shared with them
}  # their stored JSON goes into answers as it is


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_the_widest_types_have_no_more_fields(kind: type) -> None:
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else kind.model_fields  # type: ignore[attr-defined]
    assert len(fields) <= FIELDS[kind]


@pytest.mark.parametrize("table", COLUMNS, ids=lambda table: table.__tablename__)
def test_the_widest_tables_have_no_more_columns(table: type[Base]) -> None:
    assert len(table.__table__.columns) <= COLUMNS[table]


@pytest.mark.parametrize("kind", PARAMETERS, ids=lambda kind: kind.__name__)
def test_the_engine_takes_no_more_parameters(kind: type) -> None:
    assert len(inspect.signature(kind).parameters) <= PARAMETERS[kind]


@pytest.mark.parametrize("room", LINES)
def test_a_room_has_no_more_lines(room: str) -> None:
    assert sum(len(path.read_text().splitlines()) for path in (ROOT / room).rglob("*.py")) <= LINES[room]


@pytest.mark.parametrize("feature", FILES_THAT_NAME)
def test_a_feature_is_known_to_no_more_files(feature: str) -> None:
    modules = [path for room in LINES if room != "benchmarks" for path in (ROOT / room).rglob("*.py")]
    naming = [path for path in modules if re.search(rf"(?i){feature}", path.read_text())]
    assert len(naming) <= FILES_THAT_NAME[feature]
