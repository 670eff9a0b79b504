"""Scripts that print one table each and can write JSON and pictures. Engines that we compare with are only here."""
