"""What tests of the core and of backends build on: the null backend, which costs time but computes nothing."""
