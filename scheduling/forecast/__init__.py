"""When answers are expected: the policy that serves, played forward from the present queue, and how far that errs."""
