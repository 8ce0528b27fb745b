"""``python -m nemo_gym`` is ``gym``."""

from __future__ import annotations

import sys

from nemo_gym.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
