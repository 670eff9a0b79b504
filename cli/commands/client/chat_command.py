"""`magnus chat`: a conversation in the terminal, with each answer's predicted and actual length below it."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import click

from cli.api_client import Client, Json, output_text
from cli.hosting.service_access import with_client
from cli.output import CommandFailed, Unreachable

HELP = """\
/system TEXT  say how to answer from now on; without TEXT, nothing is said
/new          begin a new conversation, with the same system text
/help         show this
Ctrl-C cancels an answer, Ctrl-D ends the chat."""
DELTAS = {"response.reasoning_text.delta": True, "response.output_text.delta": False}  # whether the delta is a thought
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")
TITLE, EMPTIED_LINE = "\x1b]0;{}\x07", "\r\x1b[K"  # a terminal's commands for its title and for its line
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters, which a terminal would obey


class Chat:
    """A conversation; leaves out each question whose answer was cancelled or failed, and that answer."""

    def __init__(
        self,
        client: Client,
        fields: Json,
        show: Callable[[str, bool], None],
        expect: Callable[[Json | None], None] = lambda magnus: None,
    ) -> None:
        """Call `show` with each piece of an answer and whether it is a thought; send `fields` with every request.

        `expect` is called about once a second with the answer's `magnus` object, which tells how long it still takes,
        and with None once the answer has ended.
        """
        self._client, self._fields, self._show, self._expect = client, fields, show, expect
        self._turns: list[Json] = []

    def obey(self, line: str) -> str | None:
        """Carry out a command and return its output; None if the line is a message and not a command."""
        word, _, text = line.strip().partition(" ")
        if word == "/system":
            self._fields["instructions"] = text.strip() or None
            return "answers from now on follow this text" if text.strip() else "no system text"
        if word == "/new":
            self._turns.clear()
            return "a new conversation"
        if word == "/help":
            return HELP
        return None if text or not re.fullmatch("/[a-z]+", word) else f"{word} is no command; /help lists them"

    def ask(self, text: str) -> str:
        """Send a message, show the answer, return its figures; raises CommandFailed. Ctrl-C cancels the request."""
        turns = [*self._turns, {"role": "user", "content": text}]
        asked = {**self._fields, "input": turns, "stream_options": {"include_progress": True}}
        asked_at, first_s, request_id, response, thinks = time.monotonic(), None, None, None, False
        with closing(self._client.stream(asked)) as events:
            try:
                for event in events:
                    kind = event["type"]
                    if kind == "response.created":
                        request_id = event["response"]["id"]
                    elif kind == "magnus.progress":
                        self._expect(event["magnus"])
                    elif kind in DELTAS:
                        first_s = time.monotonic() - asked_at if first_s is None else first_s
                        if thinks and not DELTAS[kind]:
                            self._show("\n\n", True)
                        thinks = DELTAS[kind]
                        self._show(event["delta"], thinks)
                    elif kind in LAST_EVENTS:
                        response = event["response"]
                    elif kind == "error":
                        raise CommandFailed(event["message"])
            except KeyboardInterrupt:
                if request_id is not None:
                    self._client.cancel(request_id)
                raise
            finally:
                self._expect(None)
        if response is None:
            raise Unreachable("the stream ended before the answer did")
        if response["status"] not in ("completed", "incomplete"):
            raise CommandFailed((response["error"] or {}).get("message", f"the request was {response['status']}"))
        self._turns = [*turns, {"role": "assistant", "content": output_text(response)}]
        return figures(response, first_s, time.monotonic() - asked_at)


class Waiting:
    """Shows how long an answer still takes: in a line until its first text, then in the terminal's title."""

    def __init__(self, terminal: bool) -> None:
        """Shows nothing without a terminal."""
        self._terminal, self._begun = terminal, False

    def expect(self, magnus: Json | None) -> None:
        """Shows an answer's progress in place of what was shown before; None: the answer has ended."""
        words = "" if magnus is None else time_left(magnus)
        if self._terminal and (self._begun or magnus is None):
            click.echo(TITLE.format(words), nl=False, err=True, color=True)
        if self._terminal and not self._begun:
            click.echo(EMPTIED_LINE + click.style(words, dim=True), nl=False, err=True, color=True)
        self._begun = self._begun and magnus is not None

    def begin(self) -> None:
        """Removes the line, where the answer's text begins."""
        if self._terminal and not self._begun:
            click.echo(EMPTIED_LINE, nl=False, err=True, color=True)
        self._begun = True


def time_left(magnus: Json) -> str:
    """Return how long an answer still takes, in words; empty if nothing is known."""
    tokens, seconds = magnus["tokens_left"], magnus["eta_s"]
    known = [f"{tokens} tokens"] * (tokens is not None) + [f"{seconds or 0:.0f} s"] * (seconds is not None)
    return f"about {', '.join(known)} left" if known else ""


def figures(response: Json, first_s: float | None, whole_s: float) -> str:
    """Return an answer's predicted and actual length, and its times, as one line."""
    predicted, tokens = response["magnus"]["predicted_tokens"], response["usage"]["output_tokens"]
    length = f"{tokens} tokens, " + ("not predicted" if predicted is None else f"{predicted} predicted")
    first = "" if first_s is None else f"the first after {first_s:.2f} s, "
    cut = "; cut off at its limit" if response["status"] == "incomplete" else ""
    return f"{length}; {first}all after {whole_s:.2f} s{cut}"


@click.command()
@click.option("--model", help="Model to ask; by default the first one that is served.")
@click.option("--system", "instructions", help="How to answer; /system changes it.")
@click.option("--max-output-tokens", type=click.IntRange(1), help="Most tokens of an answer.")
@with_client
def chat(client: Client, model: str | None, **options: Any) -> None:
    """Chat in the terminal.

    Answers appear as they are generated; below each, its length, the predicted length and the time to its first token.
    /help lists the commands. Without a terminal, each line of standard input is a message; answers go to standard
    output, everything else to standard error. The oldest turns of a conversation that the model's context does not
    hold are left out.
    """
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    waiting = Waiting(terminal and sys.stderr.isatty())

    def show(piece: str, thinking: bool) -> None:
        waiting.begin()
        if terminal:
            text = CONTROLS.sub("", piece)
            click.echo(click.style(text, dim=True) if thinking else text, nl=False)
        elif not thinking:
            click.echo(piece, nl=False)

    given = {name: value for name, value in options.items() if value is not None}

    fields = {"model": model or client.model(), "truncation": "auto", **given}
    conversation = Chat(client, fields, show, waiting.expect)
    try:
        for line in typed_lines() if terminal else sys.stdin:
            if line.strip():
                reply(conversation, line, terminal)
    except KeyboardInterrupt:
        click.echo(err=True)
        sys.exit(130)


def reply(conversation: Chat, line: str, terminal: bool) -> None:
    """Carries out a command or answers a message; in a terminal, a cancelled or failed answer does not end the chat."""
    try:
        said = conversation.obey(line)
        if said is None:
            said = conversation.ask(line.rstrip("\n"))
            click.echo()
        click.secho(said, dim=True, err=True)
    except KeyboardInterrupt:
        click.echo("\ncancelled", err=True)
        if not terminal:
            raise
    except click.ClickException as error:
        if not terminal:
            raise
        click.echo()
        error.show()


def typed_lines() -> Iterator[str]:
    """Yields what is typed at a prompt, with line editing, until Ctrl-D."""
    with suppress(ImportError):
        import readline  # noqa: F401 — input() edits lines with it; imported here because it writes to the terminal

    while True:
        try:
            yield input("> ")
        except EOFError:
            click.echo()
            return
