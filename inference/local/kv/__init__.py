"""The memory of keys and values: its budget, its arrangement, the rows outside of it."""
