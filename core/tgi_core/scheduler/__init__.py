"""Continuous batching: queue, token budget, paged KV blocks, prefix cache, preemption."""

from tgi_core.scheduler.request import Finish, Request, RequestState
from tgi_core.scheduler.scheduler import Outputs, Scheduler, SchedulerConfig

__all__ = ["Finish", "Outputs", "Request", "RequestState", "Scheduler", "SchedulerConfig"]
