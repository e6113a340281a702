"""Made-up secrets of each known format, put together at run time so that no scanner takes this file for a leak."""

from __future__ import annotations

import base64
import random
import string


def letters(count: int, alphabet: str = string.ascii_letters + string.digits, seed: int = 7) -> str:
    """Random characters, the same ones each time, with digits and both cases in them."""
    rng = random.Random(f"{seed}/{count}/{alphabet}")
    while True:
        text = "".join(rng.choice(alphabet) for _ in range(count))
        if sum(c.isdigit() for c in text) >= 3:
            return text


HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + "234567"
PEM_BODY = "\n".join(letters(64, string.ascii_letters + string.digits + "+/", seed) for seed in range(8))
_PEM = "-----{} RSA PRIVATE KEY-----"

TOKENS: dict[str, str] = {
    "anthropic": "sk-" + "ant-api03-" + letters(80) + "-" + letters(12) + "AA",
    "openai-project": "sk-" + "proj-" + letters(60) + "_" + letters(40), "openai-legacy": "sk-" + letters(48),
    "openrouter": "sk-" + "or-v1-" + letters(64, HEX), "huggingface": "hf" + "_" + letters(34),
    "github-classic": "gh" + "p_" + letters(36), "github-app": "gh" + "s_" + letters(36),
    "github-fine-grained": "github" + "_pat_" + letters(22) + "_" + letters(59),
    "gitlab": "gl" + "pat-" + letters(20), "aws-access-key": "AK" + "IA" + letters(16, UPPER),
    "google": "AI" + "za" + letters(35), "google-oauth": "ya" + "29." + letters(60),
    "slack-bot": "xo" + "xb-" + letters(12, string.digits) + "-" + letters(24),
    "stripe": "sk" + "_live_" + letters(24), "wandb": "wandb" + "_v1_" + letters(60),
    "npm": "np" + "m_" + letters(36), "pypi": "py" + "pi-AgEIcHlwaS5vcmc" + letters(80),
    "groq": "gs" + "k_" + letters(52), "jwt": "eyJ" + letters(30) + ".eyJ" + letters(60) + "." + letters(43),
    "private-key": _PEM.format("BEGIN") + "\n" + PEM_BODY + "\n" + _PEM.format("END"),
}  # fmt: skip
"""Secrets that are known by themselves, wherever they stand."""

IN_CONTEXT: dict[str, tuple[str, str]] = {
    "discord": ("https://discord.com/api/" + "webhooks/{}", letters(18, string.digits) + "/" + letters(68)),
    "slack-trigger": ("https://hooks.slack" + ".com/triggers/{}", letters(11) + "/" + letters(32)),
    "aws-secret": ("aws_secret_access_key = {}\n", letters(40, string.ascii_letters + string.digits + "/+")),
    "aws-secret-json": ('{{"SecretAccessKey": "{}"}}', letters(40)),
    "azure-storage": ("AccountName=x;AccountKey={};EndpointSuffix=y", base64.b64encode(letters(64).encode()).decode()),
    "azure-sas": ("https://x.blob.example/c?sv=2024&sig={}&se=1", letters(40) + "%3D"),
    "azure-client": ("AZURE {} end", letters(3) + "8" + "Q~" + letters(34)),
    "url": ("git clone https://bot:{}@git.example.com/x.git", letters(12)),
    "url-token": ("--extra-index-url https://{}@pip.example/simple", letters(40, HEX)),
    "url-token-user": ("git clone https://{}:x-oauth-basic@git.example.com/x.git", letters(40, HEX)),
    "postgres": ("postgresql://user:{}@db.example/x", "hunter2!" + letters(4)),
    "bearer": ("Authorization: Bearer {}", letters(32)),
    "bearer-json": ('{{"authorization": "Bearer {}"}}', letters(32)),
    "basic": ("authorization: Basic {}", base64.b64encode(b"bot:" + letters(12).encode()).decode()),
    "password": ("password={}", letters(14)),
    "password-quoted": ('db_password: "{}"', letters(16)),
    "api-key": ("WANDB_API_KEY={}", letters(40, HEX)),
    "option": ("./tool --api-key {} --verbose", letters(24)),
    "slack-hook": ("https://hooks.slack.com/{}", "services/T" + letters(8) + "/B" + letters(8) + "/" + letters(24)),
    "netrc": ("machine api.example.com login user password {}", letters(40, HEX)),
}
"""Secrets that are known by what stands beside them: (text with a place for it, the secret)."""
