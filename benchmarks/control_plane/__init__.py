"""What the policies' decisions cost, measured without database, broker or engines."""
