"""What the webhook answers to a review: rules, capacity, the plan in a few lines, unknown fields. Pure."""
