"""What the two policies that fill continuous batches up to their memory, Baton and Fusion, assume alike."""

# Seconds of waiting that one level of priority is worth: a request overtakes those of the level below that arrived at
# most so long before it. More helps high priorities, less bounds the wait of low ones. No paper names a value; this one
# was chosen, not tuned.
PRIORITY_S = 300.0

# Tokens by which the running rows will have grown when a joiner's first iteration is over: one in the iteration that is
# under way when the decision is made, one in the iteration that the joiner takes part in.
ROW_GROWTH_TOKENS = 2
