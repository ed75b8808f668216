"""SGLang servers and their router, as the driver sees them: lifecycle, placement, HTTP clients. No torch, no SGLang.

driver: pool ─► ray_host ── Ray ──► actor/, on the engine's machine ──► SGLang's processes, with inside/ in them
driver: router ──► router_process, a separate process
"""
