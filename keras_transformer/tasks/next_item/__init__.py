"""Recommends what comes next in users' histories."""
