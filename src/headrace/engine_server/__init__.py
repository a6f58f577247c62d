"""The OpenAI surface in front of one engine process."""
