"""The dashboard: pages for operators, rendered on the server, with their sign-in and their actions."""
