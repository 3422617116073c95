"""One client process: a ClientPlan comes on standard input, a LoadResult goes to standard output."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from tgi_api.load.client import ClientPlan, LoadError, run_client

try:
    _result = asyncio.run(run_client(msgspec.json.decode(sys.stdin.buffer.read(), type=ClientPlan)))
except (LoadError, OSError) as error:
    sys.exit(str(error))
sys.stdout.buffer.write(msgspec.json.encode(_result))
