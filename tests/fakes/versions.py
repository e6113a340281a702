"""A fake for clients that serve versions of the local policy: one version is in use, whatever the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter


@dataclass
class Chosen:
    """Says which version is in use, and was asked for which models. bases: models whose hashes are known, by name."""

    version: ServedAdapter | None = None
    asked: list[BaseModel] = field(default_factory=list)
    bases: dict[str, BaseModel] = field(default_factory=dict)

    def known(self, base: BaseModel) -> BaseModel:
        return self.bases.get(base.name, base)

    def in_use(self, base: BaseModel) -> ServedAdapter | None:
        self.asked.append(base)
        return self.version
