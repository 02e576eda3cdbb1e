"""The machine that something is measured on, without its name."""

import os
import platform
import time


def machine() -> dict[str, object]:
    """Return its cores, its load, the version of Python and the system, and the date."""
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "date": time.strftime("%Y-%m-%d"),
    }
