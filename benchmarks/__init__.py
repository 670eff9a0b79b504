"""Scripts that each print a table and can write JSON and pictures. Only this package uses engines for comparison."""
