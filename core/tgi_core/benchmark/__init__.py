"""Measuring: a whole engine in one process, and a backend's operations one by one."""
