"""Chats and completions: several answers a call, prompts as they are, log probabilities in the older form."""
