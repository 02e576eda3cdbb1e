"""Puts the acceptance tests' folder on the path: chaos runs on steps like theirs, and may be started alone."""

from __future__ import annotations

import sys

from fleet import STEPS

if str(STEPS) not in sys.path:
    sys.path.append(str(STEPS))
