"""Answer the questions of `decide`: call user functions with live contexts. No lock is held meanwhile.

In: a `CallUserCode` and its run. Out: an answer, or `UserCodeFailed` with the error. It only writes results to a cache, after the commit.
"""
