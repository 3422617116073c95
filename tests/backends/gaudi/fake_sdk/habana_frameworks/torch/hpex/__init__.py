"""Extensions of the SDK."""
