"""A language model trained by policy gradient on problems whose answers can be checked."""
