"""From a model to a graph of fused steps: its calls are traced, translated one by one, and joined."""
