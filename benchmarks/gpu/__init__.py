"""The whole service on one GPU, in minutes: phases with budgets of time, for a machine that is lent without network."""
