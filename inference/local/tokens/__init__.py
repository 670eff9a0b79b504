"""Which tokens a pass computes, and which token each row gets next."""
