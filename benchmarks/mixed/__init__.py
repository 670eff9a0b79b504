"""Interactive requests beside a bulk job: what it costs them, and how much of the spare capacity the job uses."""
