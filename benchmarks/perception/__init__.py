"""How well a real language model perceives its own answers' lengths (Sequence Scheduling, Tables 1 to 3)."""
