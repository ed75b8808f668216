"""Argo CD's settings in docs/examples, and the Lua files that they carry."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3] / "docs" / "examples" / "gitops"
HOME = ROOT / "argocd"
HEALTH = HOME / "health.lua"
DISCOVERY, SUSPEND, RESUME = (HOME / "actions" / f"{name}.lua" for name in ("discovery", "suspend", "resume"))
KIND = "rljob.dev_RLJob"


def scripts() -> dict[str, object]:
    """Return what argocd-cm has to say of RLJobs, made of the files."""
    definitions = [{"name": path.stem, "action.lua": path.read_text()} for path in (SUSPEND, RESUME)]
    actions = {"discovery.lua": DISCOVERY.read_text(), "definitions": definitions}
    return {"health": HEALTH.read_text(), "actions": actions}


def carried() -> dict[str, object]:
    """Return what argocd-cm.yaml says of them."""
    data = yaml.safe_load((HOME / "argocd-cm.yaml").read_text())["data"]
    prefix = "resource.customizations"
    return {"health": data[f"{prefix}.health.{KIND}"], "actions": yaml.safe_load(data[f"{prefix}.actions.{KIND}"])}
