"""The text of rows in the making, on its way to whoever streams it."""
