"""One run of a demo: sends the arrivals, shows progress and answers, waits for the last answer, returns the figures."""

import threading
from collections.abc import Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile

from rich.console import Console

from cli.api_client import OPEN_STATES, Client, Json
from cli.demo.demo_workload import DemoArrival, DemoRequest, send_all
from cli.demo.run_report import WHOLE_OR_CUT_OFF, RunProgress, print_answer, summary

# Seconds between updates of the progress bars; each update costs the service a call. Not tuned.
POLL_S = 0.4
ANSWERS_POLL_S = 1.5  # seconds between updates that show answers, as each fetches the list of all answers; not tuned
# Seconds to wait for the last batch to close; with other clients some batch may always be open. Not tuned.
MAX_CLOSING_S = 4.0


def run_workload(
    console: Console, client: Client, arrivals: list[DemoArrival], answered: Set[str], show_answers: bool = False
) -> Json:
    """Send the arrivals, wait for all answers, return the figures; statuses in `answered` count as answers."""
    since = client.stats()["now"]
    responses = [response for _, response in send_and_wait(console, client, arrivals, since, show_answers)]
    last = max(response["completed_at"] for response in responses)
    return summary(responses, closing_stats(client, since, last), len(arrivals), answered)


def send_and_wait(
    console: Console, client: Client, arrivals: list[DemoArrival], since: float, show_answers: bool = False
) -> list[tuple[DemoRequest, Json]]:
    """Send the arrivals and return each request with its final response; `since`: the service's clock at the start."""
    sent: dict[str, DemoRequest] = {}
    shown: set[str] = set()
    stopping, pause = threading.Event(), threading.Event()
    with RunProgress(console, len(arrivals)) as progress, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_all, client, arrivals, stopping, sent.__setitem__)
        try:
            responses = None
            while responses is None:
                responses = final_responses(client, sending, sent.keys(), since)
                progress.show(len(sent), client.stats(since))
                if show_answers:
                    print_new_answers(console, client, sent, shown)
                if responses is None:
                    pause.wait(ANSWERS_POLL_S if show_answers else POLL_S)
        finally:
            stopping.set()
    return [(sent[response["id"]], response) for response in responses]


def print_new_answers(console: Console, client: Client, sent: Mapping[str, DemoRequest], shown: set[str]) -> None:
    """Print the answers that came since the last call, in the order of their ends, and add their ids to `shown`."""
    ended = [
        response
        for status in sorted(WHOLE_OR_CUT_OFF)
        for response in client.responses(status=status)
        if response["id"] in sent.keys() - shown
    ]
    for response in sorted(ended, key=lambda response: (response["completed_at"], response["id"])):
        shown.add(response["id"])
        print_answer(console, sent[response["id"]].input, response)


def final_responses(
    client: Client, sending: Future[list[Future[None]]], sent: Set[str], since: float
) -> list[Json] | None:
    """Return all responses once all are sent and final, else None; raise what sending raised."""
    if not sending.done():
        return None
    for submission in sending.result():
        submission.result()
    if any(response["id"] in sent for state in OPEN_STATES for response in client.responses(status=state)):
        return None
    newest_first = takewhile(lambda response: response["magnus"]["arrived_at"] >= since, client.responses(order="desc"))
    responses = [response for response in newest_first if response["id"] in sent]
    # a response that returned to the queue between the two calls above was in neither list
    return None if any(response["status"] in OPEN_STATES for response in responses) else responses


def closing_stats(client: Client, since: float, until: float) -> Json:
    """Wait until the last batches are closed, shortly after their answers, and return the service's statistics."""
    pause = threading.Event()
    for _ in range(round(MAX_CLOSING_S / POLL_S)):
        if client.stats(since, until)["open_batches"] == 0:
            break
        pause.wait(POLL_S)
    return client.stats(since, until)
