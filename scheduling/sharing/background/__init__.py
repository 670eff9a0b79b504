"""Background work, which takes what other work leaves: its queue, its part of the rows, its deadlines, its turn."""
