"""The name under which an application's answers are remembered: each tenant's by itself.

Two tenants may use one name, and neither may see how long the other's answers are or how long they take.
"""


def scoped_application(tenant: str, application: str) -> str:
    """The name as the queries of predictions, outcomes and response times make it: `tenant || '/' || application`."""
    return f"{tenant}/{application}"
