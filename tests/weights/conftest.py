"""Tests of this folder need downloads: ``make test-weights`` makes them and says where they are."""

from __future__ import annotations

import os

collect_ignore = [] if "TESTED_WEIGHTS" in os.environ else ["test_real_weights.py"]
