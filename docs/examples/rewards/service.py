"""A reward service: `python docs/examples/rewards/service.py` listens on port 8000.

spec.reward: {kind: Remote, remote: {url: "http://127.0.0.1:8000/score"}}
"""

from aiohttp import web


async def score(request: web.Request) -> web.Response:
    """Answer {"prompt", "response", "label"} with 1.0 or 0.0."""
    asked = await request.json()
    return web.json_response(float(asked["label"] in asked["response"]))


def service() -> web.Application:
    app = web.Application()
    app.router.add_post("/score", score)
    return app


if __name__ == "__main__":
    web.run_app(service(), port=8000)
