"""Answers to what `decide` asks: user functions, and contexts as live values. Asked with no lock held.

In: a `CallUserCode` and the run it is about. Out: an answer, or `UserCodeFailed` with what went wrong. It writes nothing but
what a cache is to store, after the commit.
"""
