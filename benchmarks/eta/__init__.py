"""How far ETAs err and what their intervals cover, on the real stack."""
