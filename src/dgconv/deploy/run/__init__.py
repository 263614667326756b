"""A graph of steps run on this CPU: packed and laid out for native code, or step by step with torch."""
