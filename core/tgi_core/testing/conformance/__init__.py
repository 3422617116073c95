"""The tests of the conformance kit and what they are made of; see docs/backends/write-a-backend.md."""
