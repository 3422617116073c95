"""A load of many streams against a server, and what it measures."""

from tgi_api.load.client import LoadError, LoadResult, percentile
from tgi_api.load.prompts import text_prompts
from tgi_api.load.run import run_load

__all__ = ["LoadError", "LoadResult", "percentile", "run_load", "text_prompts"]
