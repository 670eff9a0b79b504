"""What a tenant may send and have in the queue, and how long a prompt may be."""
