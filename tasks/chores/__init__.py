"""The process `chores`: feeds bulk jobs, sends webhooks, samples the service, deletes old rows, exports traces."""
