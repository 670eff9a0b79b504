"""The dashboard: server-rendered pages for operators, with their sign-in, and what they may do."""
