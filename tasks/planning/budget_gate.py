"""Keeps requests of tenants and bulk jobs whose budget is spent from the policies, until it is raised or begins anew.

Read at each step, so that after a budget is spent only what ran by then adds to it.
"""

from collections.abc import Mapping

import structlog
from sqlalchemy import Connection

from models.planning import planner_requests
from models.planning.planner_requests import QueuedRequest
from models.tenants import budgets
from models.tenants.budgets import SpentBudgets
from scheduling.request import Request
from tasks.planning.policies_by_model import PoliciesByModel

log = structlog.get_logger()


class BudgetGate:
    """Knows whose budgets are spent, and which requests the policies lack because of that."""

    def __init__(self, connection: Connection, prices: Mapping[str, float]) -> None:
        """`prices` are those of a GPU-second by tier of the usage."""
        self._connection, self._prices = connection, prices
        self.spent = SpentBudgets()
        self._kept: dict[str, Request] = {}
        self._free: list[str] = []  # those that are to be fetched again

    def adopt(self, policies: PoliciesByModel, most: int) -> None:
        """Takes requests back from the policies, and lets at most `most` that may go on be fetched again."""
        before, self.spent = self.spent, budgets.spent(self._connection, self._prices)
        if before != self.spent:
            log.info("spent budgets change", tenants=sorted(self.spent.tenants), jobs=sorted(self.spent.jobs))
            waiting = [one.request for model, _ in policies for one in policies.waiting_for(model)]
            taken = {one.id: one for one in waiting if self.spent.covers(one)}
            policies.discard_all(taken)
            every = self._kept | taken
            self._kept = {name: one for name, one in every.items() if self.spent.covers(one)}
            self._free += every.keys() - self._kept.keys()
        again, self._free = self._free[:most], self._free[most:]
        planner_requests.fetch_again(self._connection, again)

    def keeps(self, one: QueuedRequest) -> bool:
        """Returns whether a fetched request waits for its budget; it is fetched again once it may go on."""
        self._kept.pop(one.request.id, None)
        if not self.spent.covers(one.request):
            return False
        self._kept[one.request.id] = one.request
        return True
