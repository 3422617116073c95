"""Continuous batching: queue, token budget, paged KV blocks, prefix cache, preemption."""

from tgi_core.scheduler.request import Finish, Request, RequestState
from tgi_core.scheduler.scheduler import Scheduler, SchedulerConfig
from tgi_core.scheduler.steps import Outputs

__all__ = ["Finish", "Outputs", "Request", "RequestState", "Scheduler", "SchedulerConfig"]
