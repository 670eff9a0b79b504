"""How connections to Postgres fail, what its errors say, and which schema it has."""
