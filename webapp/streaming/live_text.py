"""The beginning of one answer, as far as it has come over the broker without a gap. No I/O."""

from collections.abc import Callable


class LiveText:
    """Pieces put together by their positions; the feed's thread adds them, the stream's thread reads `text`."""

    def __init__(self, id: str, on_more: Callable[[], None], *, missed: bool) -> None:
        """`missed`: pieces may have come before. `on_more` is called when `text` has grown."""
        self.id = id
        self.text = ""
        self.missed = missed  # a piece is missing, so that the whole must be asked for
        self._on_more = on_more
        self._contradicted = False

    def add(self, start: int, piece: str) -> None:
        """Add a piece that begins at character `start`; one behind a gap is dropped, known text is not added again.

        Once a piece contradicts what has come before, nothing is added any more: the stored answer decides.
        """
        known = self.text[start : start + len(piece)]
        if start > len(self.text):
            self.missed = True
        elif piece[: len(known)] != known:
            self._contradicted = True
        if self._contradicted or start > len(self.text):
            return
        self.missed = False
        if len(piece) > len(known):
            self.text += piece[len(known) :]
            self._on_more()
