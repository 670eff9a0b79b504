"""An hour of continuous learning in virtual time (Magnus Fig. 14)."""
