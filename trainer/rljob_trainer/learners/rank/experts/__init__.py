"""Mixtures of experts: layers, routers, and what routers do beside choosing."""
