"""A rank's state as files in Megatron's distributed format, read without running code that they may hold."""
