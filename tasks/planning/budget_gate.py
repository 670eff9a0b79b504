"""Keeps requests of tenants and bulk jobs whose budget is spent from the policies, until it is raised or begins anew.

Read at each step, or more rarely while a read takes long (the process `chores` is away, so that usage is not summed up
by day): what ran when a budget was spent, and what began until the next read, adds to it.
"""

from collections.abc import Mapping
from itertools import islice
from time import perf_counter

import structlog
from sqlalchemy import Connection

from models.planning import planner_requests
from models.tenants import budgets
from models.tenants.budgets import SpentBudgets
from tasks.planning.policies_by_model import PoliciesByModel

# A read of more than FREE_S is followed by a pause of SPACING times what it took beyond that: with a million entries
# each step waited 0.3 s for it. No pause is longer than MOST_S. Not tuned.
FREE_S, SPACING, MOST_S = 0.1, 20, 5.0

log = structlog.get_logger()


class BudgetGate:
    """Knows whose budgets are spent; remembers no request that waits because of that."""

    def __init__(self, connection: Connection, prices: Mapping[str, float]) -> None:
        """`prices` are those of a GPU-second by tier of the usage."""
        self._connection, self._prices = connection, prices
        self.spent = SpentBudgets()
        self._due_at = 0.0
        self._free = set[str]()  # requests that are to be fetched again

    def adopt(self, policies: PoliciesByModel, most: int) -> None:
        """Takes requests back from the policies, and lets at most `most` that may go on be fetched again."""
        if perf_counter() >= self._due_at:
            self._read(policies)
        next_ids = set(islice(self._free, most))
        self._free -= next_ids
        planner_requests.fetch_again(self._connection, next_ids)

    def _read(self, policies: PoliciesByModel) -> None:
        began = perf_counter()
        before, self.spent = self.spent, budgets.spent(self._connection, self._prices)
        ended = perf_counter()
        self._due_at = ended + min(MOST_S, SPACING * max(0.0, ended - began - FREE_S))
        if before != self.spent:
            log.info("spent budgets change", tenants=sorted(self.spent.tenants), jobs=sorted(self.spent.jobs))
            waiting = [one.request for model, _ in policies for one in policies.waiting_for(model)]
            policies.discard_all([one.id for one in waiting if self.spent.covers(one)])
            budgets.withdraw_promises(self._connection, self.spent.tenants - before.tenants)
            tenants, jobs = before.tenants - self.spent.tenants, before.jobs - self.spent.jobs
            self._free |= planner_requests.fetched_of(self._connection, tenants, jobs)
