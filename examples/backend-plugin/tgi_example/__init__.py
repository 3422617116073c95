"""A backend of tgi-serve."""
