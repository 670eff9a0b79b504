"""How the KV cache is divided among rows: pieces of a rectangle, or blocks, and attention over them."""
