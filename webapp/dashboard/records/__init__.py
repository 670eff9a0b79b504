"""Pages of what is kept one by one: jobs, batches, webhooks, usage, what operators did."""
