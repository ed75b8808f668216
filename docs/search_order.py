"""Which pages the site's search prefers: guides come before evidence and before single failures. MkDocs calls it."""

from typing import Any

BOOSTS = {"Evidence": 0.01, "Troubleshooting": 0.01, "Contributing": 0.01, "Models and layouts": 0.3}
"""by section of the navigation, as a factor of what the search finds a page to be worth"""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Give a page the factor of its section, unless its front matter has one."""
    found = next((BOOSTS[each.title] for each in page.ancestors if each.title in BOOSTS), None)
    if found is not None:
        page.meta.setdefault("search", {}).setdefault("boost", found)
    return markdown
