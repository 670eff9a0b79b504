"""Scripts that print one table each and can write JSON and pictures; peers live here, never in the product."""
