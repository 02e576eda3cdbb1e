"""Answers to what `decide` asks: user functions, and contexts as live values. Asked with no lock held.

In: an `Ask` and the run it is about. Out: an answer, or `Refused` with what went wrong. It writes nothing but
what a cache is to keep, after the commit.
"""
