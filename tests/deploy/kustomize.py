"""Manifests of a kustomization: by kubectl, or by a small reader that supports what our kustomizations use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml
from processes import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Object = dict[str, Any]

KEYS = {"volumeMounts": "mountPath", "ports": "containerPort"}
"""Keys that identify the members of a list, where that is not their name."""

CLUSTER = {"Namespace", "PriorityClass"}
"""Kinds without a namespace."""

KUBECTL = 27
"""First minor version of kubectl that supports all used features; Debian 12 has 1.20, which lacks components."""


@cache
def has_kubectl() -> bool:
    """Return True if kubectl is installed and can build the kustomizations."""
    if shutil.which("kubectl") is None:
        return False
    asked = ["kubectl", "version", "--client", "--output=json"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=DEADLINE)
    found = re.search(r'"minor": "(\d+)', done.stdout)
    return found is not None and int(found[1]) >= KUBECTL


def build(directory: Path) -> list[Object]:
    """Return the manifests of a directory."""
    return built(directory) if has_kubectl() else resolved(directory)


def built(directory: Path) -> list[Object]:
    """Return the manifests of a directory, by kubectl."""
    return list(yaml.load_all(_kubectl(directory), yaml.CSafeLoader))


@cache
def _kubectl(directory: Path) -> str:
    asked = ["kubectl", "kustomize", str(directory)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, ""), directory
    return done.stdout


def resolved(directory: Path) -> list[Object]:
    """Return the manifests of a directory without kubectl, and without the hash after a ConfigMap's name."""
    return _applied(directory, [])


def _applied(directory: Path, objects: list[Object]) -> list[Object]:
    """Return *objects* and the manifests of a directory, with its components and patches applied."""
    wanted = yaml.safe_load((directory / "kustomization.yaml").read_text(encoding="utf-8"))
    objects = [*objects, *_read(directory, wanted), *_config_maps(directory, wanted)]
    for component in wanted.get("components", ()):
        objects = _applied((directory / component).resolve(), objects)
    for patch in wanted.get("patches", ()):
        text = (directory / patch["path"]).read_text(encoding="utf-8")
        objects = [_patched(one, yaml.safe_load(text), patch) for one in objects]
    for one in objects:
        _finish(one, wanted)
    return objects


def _read(directory: Path, wanted: Object) -> list[Object]:
    found: list[Object] = []
    for name in wanted.get("resources", ()):
        path = (directory / name).resolve()
        found += resolved(path) if path.is_dir() else yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return found


def _config_maps(directory: Path, wanted: Object) -> list[Object]:
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": one["name"],
                "labels": {**wanted.get("generatorOptions", {}), **one.get("options", {})}["labels"],
            },
            "data": {name: (directory / name).read_text(encoding="utf-8") for name in one["files"]},
        }
        for one in wanted.get("configMapGenerator", ())
    ]


def _patched(one: Object, patch: Object, wanted: Object) -> Object:
    target = wanted.get("target", {"kind": patch["kind"], "name": patch["metadata"]["name"]})
    if (
        re.fullmatch(target["kind"], one["kind"]) is None
        or target.get("name", one["metadata"]["name"]) != one["metadata"]["name"]
    ):
        return one
    metadata = {**patch.get("metadata", {}), "name": one["metadata"]["name"]}
    return merged(one, {**patch, "kind": one["kind"], "metadata": metadata})


def merged(one: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """Return a strategic merge: mappings by key, lists of mappings by the names of their members, the rest replaced."""
    found = dict(one)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            found[key] = merged(found.get(key, {}), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            name = KEYS.get(key, "name")
            if name not in value[0]:  # kubectl, too, merges no lists of a kind without a schema
                found[key] = value
                continue
            old = {member[name]: member for member in found.get(key, ())}
            new = {member[name]: merged(old.get(member[name], {}), member) for member in value}
            found[key] = [*{**old, **new}.values()]
        else:
            found[key] = value
    return found


def _finish(one: Object, wanted: Object) -> None:
    if "namespace" in wanted and one["kind"] not in CLUSTER:
        one["metadata"]["namespace"] = wanted["namespace"]
    for more in wanted.get("labels", ()):
        one["metadata"].setdefault("labels", {}).update(more["pairs"])
    for image in wanted.get("images", ()):
        for container in containers(one):
            name, _, tag = container["image"].rpartition(":")
            if name == image["name"]:
                container["image"] = f"{image['newName']}:{tag}"


def pod(one: Object) -> Object:
    """Return the specification of the Pods that an object makes; empty if it makes none."""
    return one.get("spec", {}).get("template", {}).get("spec", {}) if one["kind"] in {"DaemonSet", "Job"} else {}


def containers(one: Object) -> list[Object]:
    """Return all containers of an object's Pods, init containers first."""
    found = pod(one)
    return [*found.get("initContainers", ()), *found.get("containers", ())]


def canonical(objects: list[Object]) -> list[str]:
    """Return objects in a form for comparison: without digits, and with lists of mappings in one order."""
    return sorted(json.dumps(_ordered(one)) for one in objects)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        members = [_ordered(one) for one in value]
        return sorted(members, key=str) if value and isinstance(value[0], dict) else members
    return re.sub(r"^trackside-[a-z0-9]{10}$", "trackside", value) if isinstance(value, str) else value
