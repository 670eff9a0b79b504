"""The service's processes on one host: embedded servers, supervisor, readiness."""
