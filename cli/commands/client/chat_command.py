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
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters, which a terminal would obey


class Chat:
    """A conversation; leaves out each question whose answer was cancelled or failed, and that answer."""

    def __init__(
        self,
        client: Client,
        fields: Json,
        show: Callable[[str, bool], None],
        expect: Callable[[float | None], None] = lambda eta_s: None,
    ) -> None:
        """Call `show` with each piece of an answer and whether it is a thought; send `fields` with every request.

        `expect` is called with the seconds until the whole answer is expected, None if that is not known.
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
        asked_at, first_s, request_id, response, thinks = time.monotonic(), None, None, None, False
        with closing(self._client.stream({**self._fields, "input": turns})) as events:
            try:
                for event in events:
                    kind = event["type"]
                    if kind == "response.created":
                        request_id = event["response"]["id"]
                        self._expect(event["response"]["magnus"]["eta_s"])
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
        if response is None:
            raise Unreachable("the stream ended before the answer did")
        if response["status"] not in ("completed", "incomplete"):
            raise CommandFailed((response["error"] or {}).get("message", f"the request was {response['status']}"))
        self._turns = [*turns, {"role": "assistant", "content": output_text(response)}]
        return figures(response, first_s, time.monotonic() - asked_at)


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

    def show(piece: str, thinking: bool) -> None:
        if terminal:
            text = CONTROLS.sub("", piece)
            click.echo(click.style(text, dim=True) if thinking else text, nl=False)
        elif not thinking:
            click.echo(piece, nl=False)

    given = {name: value for name, value in options.items() if value is not None}

    def expect(eta_s: float | None) -> None:
        if terminal and eta_s is not None and eta_s >= 1:
            click.secho(f"[the whole answer in about {eta_s:.0f} s]", dim=True, err=True)

    conversation = Chat(client, {"model": model or client.model(), "truncation": "auto", **given}, show, expect)
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
