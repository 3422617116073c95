"""Stand-ins for classes of devices that a test machine lacks; they compute for real, on the CPU."""
