"""What the clients ask, and what the demo model is sure to know."""

from __future__ import annotations

PROMPT = "The capital of France is"
ANSWER = "Paris"
MESSAGES = [{"role": "user", "content": "Who wrote Hamlet?"}]
AUTHOR = "Shakespeare"

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": WEATHER}]
WEATHER_MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]

AUTHOR_SCHEMA = {
    "type": "object",
    "properties": {"author": {"enum": ["Marlowe", "Shakespeare"]}},
    "required": ["author"],
}
