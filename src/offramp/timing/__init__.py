"""Seconds: the one stopwatch, profiles of networks, and policies on the clock."""
