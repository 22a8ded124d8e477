"""How graphs and exports are compared with their model: what they take and give, answers, and probes."""
