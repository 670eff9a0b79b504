"""A channel is subscribed to again after an error, and says when messages may have been missed."""

from queue import SimpleQueue
from threading import Event

from models.notifications import NotificationsUnavailable
from processes.listening import Channel, Listener


class Away(Exception):
    pass


class Scripted:
    """A subscription that gives what it was told to give, and fails at `Away`."""

    def __init__(self, *script: list[str] | type[Away]) -> None:
        self.script, self.closed = list(script), False

    def wait(self, within_s: float) -> list[str]:
        given = self.script.pop(0) if self.script else []
        if isinstance(given, type):
            raise given
        return given

    def close(self) -> None:
        self.closed = True


def test_after_an_error_it_subscribes_again_once_the_pause_is_over():
    first, second = Scripted(Away), Scripted(["a"])
    subscriptions, slept = [first, second], list[float]()
    channel = Channel("test", lambda: subscriptions.pop(0), (Away,))
    channel.wait(1.0)
    assert channel.wait(1.0) is None  # the error
    assert (channel.subscribed, first.closed) == (False, True)
    while not channel.subscribed:
        assert channel.wait(0.01, slept.append) is None
    assert channel.wait(1.0) == ["a"]
    assert slept
    assert max(slept) <= 0.01


def test_a_server_that_cannot_be_reached_is_tried_again_by_a_listener_until_it_is_stopped():
    tried = Event()

    def subscribe() -> Scripted:
        tried.set()
        raise Away

    listener = Listener("test", Channel("test", subscribe, (Away,)), lambda _: None, wait_s=60.0)
    listener.start()
    assert tried.wait(20)
    listener.stop()
    listener.join(20)
    assert not listener.is_alive()


def test_a_listener_passes_messages_on_and_says_when_it_begins():
    heard = SimpleQueue[list[str]]()
    channel = Channel("test", lambda: Scripted(["a"], ["b"]), (Away,))
    listener = Listener("test", channel, heard.put, wait_s=0.0)
    listener.start()
    assert [heard.get(timeout=20) for _ in range(3)] == [[], ["a"], ["b"]]
    listener.stop()
    listener.join(20)


def test_behind_a_pooler_a_listener_ends_and_says_so():
    def subscribe() -> Scripted:
        raise NotificationsUnavailable

    told = Event()
    listener = Listener("test", Channel("test", subscribe, (Away,)), lambda _: None, wait_s=0.0, on_pooler=told.set)
    listener.run()
    assert told.is_set()
