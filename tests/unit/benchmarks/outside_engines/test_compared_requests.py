"""Which requests a comparison measures, and what Magnus learns before."""

import io
import json

from benchmarks.generated_answers import RealAnswer
from benchmarks.outside_engines.compared_requests import divided
from cli.commands.training_examples import Example, read_examples

INSTRUCTIONS = [("chat", "", f"Question {number}") for number in range(6)]
KNOWN = [RealAnswer("chat", "", f"Question {number}", 2, 10, 20 + number, number == 1, "") for number in (1, 4)]


def test_no_measured_request_has_a_known_answer():
    compared = divided(INSTRUCTIONS, KNOWN)
    sent = {arrival.request.input for arrival in compared.arrivals(requests=40, rate=2.0, seed=0)}
    assert sent == {"Question 0", "Question 2", "Question 3", "Question 5"}
    assert {arrival.request.input for arrival in compared.at_once(10, seed=0)} == {"Question 1", "Question 4"}


def test_magnus_train_reads_lengths_and_cuts_from_the_log_of_known_answers():
    log = io.StringIO("".join(json.dumps(line) + "\n" for line in divided(INSTRUCTIONS, KNOWN).log))
    assert list(read_examples(log)) == [
        Example("", "Question 1", 21, "chat", cut=True),
        Example("", "Question 4", 24, "chat", cut=False),
    ]
