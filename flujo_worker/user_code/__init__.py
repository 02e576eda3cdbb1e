"""Answer the questions of `decide`: call user functions with live contexts. No lock is held meanwhile; results go to a cache after the commit."""
